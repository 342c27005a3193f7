# Every target only calls a script, so that `make` is never needed.

.DEFAULT_GOAL := help
.PHONY: help setup run test check lint format bench mutants site build package distribution clean lock

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: ## make the virtual environments for everything
	./scripts/setup --dev --java --spark40 --tools --clients --browser --localstack

run: ## run the whole path on the embedded AWS; ends by itself
	./scripts/run

test: ## lint and all tests, as CI does
	./scripts/test

check: ## lint and the fast tests, before every commit (under 2 minutes)
	./scripts/check

lint: ## ruff, ruff format, mypy strict
	./scripts/lint

format: ## repair what ruff can repair
	./scripts/lint --fix

bench: ## run a benchmark: make bench NAME=coldstart
	./scripts/bench $(NAME)

mutants: ## remove guards one at a time: make mutants [MODULE=store/] [ALL=1]
	./scripts/mutants $(if $(ALL),--all --minutes 600) $(MODULE)

site: ## build the documentation site into build/site
	./scripts/site

build: ## check the template, and build functions and layer into .aws-sam/
	./scripts/build

package: ## package the Spark jobs for EMR into dist/spark/
	./scripts/package_spark

distribution: ## build sdist and wheel into dist/
	./scripts/distribution

clean: ## remove what was generated, but not the virtual environments
	rm -rf .aws-sam .worm-dev .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist bench-results
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## regenerate the pinned versions (constraints*.txt)
	./scripts/setup --dev
	.venv/bin/python -m scripts.lock

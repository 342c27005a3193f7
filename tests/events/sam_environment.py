"""The variables that `sam local invoke --env-vars` gives to each function, as JSON. Run by .venv-tools, without Docker:

python tests/events/sam_environment.py template.yaml tests/events/env.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

from samcli.commands.local.lib.local_lambda import LocalLambdaRunner
from samcli.lib.providers.sam_function_provider import SamFunctionProvider
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider

SHELL = {"key": "test", "secret": "test", "region": "us-east-1"}


def main(template: str, env_file: str) -> None:
    stacks, _ = SamLocalStackProvider.get_stacks(template)
    provider = SamFunctionProvider(stacks)
    values = json.loads(Path(env_file).read_text())
    folder = str(Path(template).parent)
    runner = LocalLambdaRunner(MagicMock(), provider, folder, folder, aws_region="us-east-1", env_vars_values=values)
    runner.get_aws_creds = lambda: SHELL
    print(json.dumps({one.name: runner._make_env_vars(one).resolve() for one in provider.get_all()}))


if __name__ == "__main__":
    main(*sys.argv[1:])

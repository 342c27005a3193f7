"""Prints the CloudFormation template that SAM generates from a SAM template, without AWS.

cfn-lint finds errors there that it cannot see in the SAM source, such as a queue whose visibility timeout is shorter
than the function's timeout. Runs in .venv-tools:  .venv-tools/bin/python scripts/sam_translate.py template.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import boto3
from samcli.yamlhelper import yaml_parse
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

REGION = "eu-central-1"
# The deployment uploads code and nested templates and names their locations here; the translator requires such names.
UPLOADED = {
    "CodeUri": "s3://uploaded/code.zip",
    "ContentUri": "s3://uploaded/code.zip",
    "Location": f"https://s3.{REGION}.amazonaws.com/uploaded/nested.template",
}


def translate(path: Path) -> str:
    template = yaml_parse(path.read_text())
    for resource in template["Resources"].values():
        for name, uploaded in UPLOADED.items():
            if name in resource.get("Properties", {}):
                resource["Properties"][name] = uploaded
    # A nested template gets its values from its parent: any value will do here.
    parameters = {name: spec.get("Default", "given") for name, spec in template.get("Parameters", {}).items()}
    session = boto3.Session(region_name=REGION)
    translated = Translator({}, Parser(), boto_session=session).translate(template, parameters)
    return json.dumps(translated, indent=2)


if __name__ == "__main__":
    print(translate(Path(sys.argv[1])))

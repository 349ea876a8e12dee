"""Usage: validate_schema.py SCHEMA INSTANCES

INSTANCES has one JSON document a line. Prints a line for each: "valid", or where it is not and why.
Exits with 77 where the package jsonschema (with draft 2020-12) is missing."""

import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit(77)

with open(sys.argv[1], encoding="utf-8") as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
with open(sys.argv[2], encoding="utf-8") as file:
    for line in file:
        errors = sorted(validator.iter_errors(json.loads(line)), key=lambda error: error.json_path)
        print(f"{errors[0].json_path}: {errors[0].message[:600]}" if errors else "valid")

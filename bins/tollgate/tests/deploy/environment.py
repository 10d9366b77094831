"""Prints the variables of a container, a line each: those of the image, and those of a manifest or a compose file over them.

Usage: environment.py DOCKERFILE FILE CONTAINER
"""

import re
import sys
from pathlib import Path

import yaml

dockerfile, file, name = sys.argv[1:]
joined = Path(dockerfile).read_text().replace("\\\n", " ")
variables = {}
for line in re.findall(r"^ENV (.*)$", joined, re.MULTILINE):
    variables |= dict(pair.split("=", 1) for pair in line.split())


def containers(document):
    """The containers of a manifest, or the services of a compose file, by name."""
    if "services" in document:
        return document["services"]
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return {container["name"]: container for container in pod.get("containers", [])}


found = [(document, containers(document)[name]) for document in yaml.safe_load_all(Path(file).read_text())
         if document and name in containers(document)]
[(document, container)] = found
if "services" not in document and document["spec"]["template"]["spec"].get("enableServiceLinks", True):
    # Kubernetes sets these and others for a Service with the name of the container.
    variables[f"{name.upper()}_SERVICE_HOST"] = "10.0.0.1"
own = container.get("environment") or {one["name"]: one.get("value", "") for one in container.get("env", [])}
for variable, value in (variables | own).items():
    print(f"{variable}={value}")

"""Checks the kustomizations below a folder: what they name is there, and every manifest is named."""

import sys
from pathlib import Path

import yaml

root = Path(sys.argv[1])
named, problems = set(), []
for file in sorted(root.rglob("kustomization.yaml")):
    kustomization = yaml.safe_load(file.read_text())
    files = kustomization.get("resources", [])
    for generator in kustomization.get("configMapGenerator", []):
        files += generator.get("files", [])
    for name in files:
        path = (file.parent / name).resolve()
        named.add(path)
        if not path.exists() or (path.is_dir() and not (path / "kustomization.yaml").exists()):
            problems.append(f"{file} names {name}, which is not there")
for path in sorted(root.rglob("*")):
    if path.is_file() and path.name != "kustomization.yaml" and path.resolve() not in named:
        problems.append(f"{path} is in no kustomization")
if problems:
    sys.exit("\n".join(problems))

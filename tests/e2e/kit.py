"""What the operator's kit (deploy/) names is really there.

kit.py names FILE...             the metrics and labels that dashboards and alerts name are in the /metrics texts FILE...
kit.py alerts                    each alert has a place in the runbook, a test where it fires and one where it does not
kit.py manifests TELESTO         selectors meet labels, ports have names, flags and settings are those of TELESTO start
"""
import json, pathlib, re, subprocess, sys
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
faults = []


def fault(text):
    faults.append(text)
    print("FAILED", text)


def rules():
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        board = json.loads(path.read_text())
        ids = [panel["id"] for panel in board["panels"]]
        if len(ids) != len(set(ids)):
            fault(f"{path.name}: two panels have one id")
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name} ${variable['name']}", variable["query"]["query"]
        for panel in board["panels"]:
            if panel["type"] != "row" and not panel.get("targets"):
                fault(f"{path.name}: panel {panel['title']} asks for nothing")
            for target in panel.get("targets", []):
                yield f"{path.name}: {panel['title']}", target["expr"]


def names(files):
    shown = "\n".join(pathlib.Path(file).read_text() for file in files)
    series = {}
    for line in shown.splitlines():
        found = re.match(r"([a-z_0-9]+)(?:\{(.*)\})? ", line)
        if found and not line.startswith("#"):
            labels = set(re.findall(r'([a-z_]+="[^"]*")', found[2] or ""))
            series.setdefault(found[1], []).append(labels)
    checked = set()
    for place, expression in expressions():
        for name, labels in re.findall(r"\b(telesto_[a-z_0-9]+)(?:\{([^}]*)\})?", expression):
            checked.add(name)
            if name not in series:
                fault(f"{place}: no node shows {name}")
                continue
            asked = set(re.findall(r'([a-z_]+="[^"$]*")', labels))
            if not any(asked <= have for have in series[name]):
                fault(f"{place}: no node shows {name} with {sorted(asked)}")
        for label in re.findall(r"\bby \(([^)]*)\)", expression):
            for one in re.split(r",\s*", label):
                if one not in ("job", "instance", "le") and f'{one}="' not in shown:
                    fault(f"{place}: no metric has the label {one}")
    print(f"{len(checked)} metrics of dashboards and alerts are shown by nodes")
    if len(checked) < 30:
        fault("hardly any metric was found in dashboards and alerts: is this check still right?")


def alerts():
    runbook = (ROOT / "docs/operating/runbook.md").read_text()
    headings = {line[4:].strip().lower() for line in runbook.splitlines() if line.startswith("### ")}
    tests = yaml.safe_load((DEPLOY / "prometheus/alerts_test.yml").read_text())["tests"]
    tried = [case for test in tests for case in test["alert_rule_test"]]
    known = set()
    for rule in rules():
        name = rule["alert"]
        known.add(name.lower())
        if name.lower() not in headings:
            fault(f"{name} is not in docs/operating/runbook.md")
        if rule["annotations"]["runbook"] != f"docs/operating/runbook.md#{name.lower()}":
            fault(f"{name} points to another place of the runbook")
        fires = [bool(case["exp_alerts"]) for case in tried if case["alertname"] == name]
        if set(fires) != {True, False}:
            fault(f"{name} needs a test where it fires and one where it does not")
    for heading in headings - known:
        fault(f"the runbook has {heading}, and there is no such alert")
    print(f"{len(known)} alerts are in the runbook and tried")


def manifests(telesto):
    text = subprocess.run([telesto, "start", "--help"], capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"--([a-z-]+)", text))
    settings = set(re.findall(r"\[env: ([A-Z_]+)", text))
    objects = []
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    if set(listed) != {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}:
        fault("kustomization.yaml does not list every manifest")
    for name in listed:
        objects += list(yaml.safe_load_all((folder / name).read_text()))
    kinds = {}
    for item in objects:
        kinds.setdefault(item["kind"], []).append(item)
    (workload,) = kinds["StatefulSet"]
    pod = workload["spec"]["template"]
    labels = pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = {arg.split("=")[0].lstrip("-"): arg.partition("=")[2] for arg in container["args"] if arg.startswith("--")}
    for flag in given:
        if flag not in flags:
            fault(f"the StatefulSet starts nodes with --{flag}, which there is not")
    for port, flag in (("postgres", "listen"), ("nodes", "cluster"), ("status", "status")):
        if given[flag].rpartition(":")[2] != str(ports[port]):
            fault(f"port {port} is not that of --{flag}")
    for config in kinds["ConfigMap"]:
        for key in config["data"]:
            if key.startswith("TELESTO_") and key not in settings:
                fault(f"the ConfigMap sets {key}, which there is not")
    for kind, path in (("StatefulSet", "selector"), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for item in kinds[kind]:
            if item["spec"][path]["matchLabels"].items() - labels.items():
                fault(f"the {kind} selects other pods")
    for service in kinds["Service"]:
        if service["spec"]["selector"].items() - labels.items():
            fault(f"Service {service['metadata']['name']} selects other pods")
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports:
                fault(f"Service {service['metadata']['name']}: no port {port['targetPort']}")
    if workload["spec"]["serviceName"] not in [s["metadata"]["name"] for s in kinds["Service"]]:
        fault("the StatefulSet's Service is not there")
    if workload["spec"]["podManagementPolicy"] != "Parallel":
        fault("nodes are started one after the other: after the death of all, none would become ready")
    if container["readinessProbe"]["httpGet"]["path"] != "/ready":
        fault("readiness is not that of /ready")
    drain = container["lifecycle"]["preStop"]["exec"]["command"][1:]
    told = subprocess.run([telesto, *drain, "--help"], capture_output=True, text=True)
    if told.returncode != 0:
        fault(f"telesto has no command {drain}")
    unit = (DEPLOY / "systemd/telesto.service").read_text()
    for flag in re.findall(r"^ExecStart=.*$", unit, re.M)[0].split():
        if flag.startswith("--") and flag[2:] not in flags:
            fault(f"the unit starts nodes with {flag}, which there is not")
    for line in (DEPLOY / "systemd/telesto.toml").read_text().splitlines():
        key = re.match(r"([a-z-]+) = ", line)
        if key and key[1] not in flags:
            fault(f"systemd/telesto.toml sets {key[1]}, which there is not")
    print(f"{len(objects)} manifests fit each other and telesto start")


{"names": lambda: names(sys.argv[2:]), "alerts": alerts, "manifests": lambda: manifests(sys.argv[2])}[sys.argv[1]]()
sys.exit(bool(faults))

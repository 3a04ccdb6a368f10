#!/usr/bin/env python3
"""kubernetes.py TROUPE MANIFEST...: holds the manifests to a small strict schema (fields that Kubernetes has, of those that
they use), to each other, and runs what their containers run: as many processes as there are pods. Skipped (77) without PyYAML."""
import json, os, shutil, signal, subprocess, sys, tempfile, time

try:
    import yaml
except ImportError:
    sys.exit(77)

SCHEMAS = json.load(open(os.path.join(os.path.dirname(__file__), "kubernetes_schemas.json")))


def check(value, schema, at):
    """JSON Schema's type, enum, properties, required, items, and $ref into the file; a field that is not named is wrong."""
    if "$ref" in schema:
        return check(value, SCHEMAS[schema["$ref"]], at)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = schema["type"]
    assert isinstance(value, kinds[kind]) and not (kind == "integer" and isinstance(value, bool)), f"{at}: {value!r} is no {kind}"
    assert value in schema.get("enum", [value]), f"{at}: {value!r} is none of {schema['enum']}"
    if kind == "array":
        for i, item in enumerate(value):
            check(item, schema["items"], f"{at}[{i}]")
    if kind == "object":
        fields = schema.get("properties")
        for name, one in value.items():
            assert fields is None or name in fields, f"{at}: there is no field {name}"
            check(one, fields[name] if fields else schema["values"], f"{at}.{name}")
        for name in schema.get("required", []):
            assert name in value, f"{at}: it lacks {name}"


def check_together(documents, name):
    """What the schema of one object cannot see."""
    by_kind = {document["kind"]: document for document in documents}
    claims = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim"}
    pods = by_kind.get("Job") or by_kind["StatefulSet"]
    pod = pods["spec"]["template"]["spec"]
    container = pod["containers"][0]
    service = by_kind["Service"]
    assert service["spec"]["clusterIP"] == "None", f"{name}: the service is headless"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounted.values()) == set(volumes), f"{name}: volumes and mounts"
    shared = volumes[mounted["/shared"]]
    assert shared["persistentVolumeClaim"]["claimName"] in claims, f"{name}: a volume without its claim"
    assert "ReadWriteMany" in by_kind["PersistentVolumeClaim"]["spec"]["accessModes"], f"{name}: all pods write to it"
    if pods["kind"] == "StatefulSet":
        assert pods["spec"]["serviceName"] == service["metadata"]["name"], f"{name}: serviceName"
        labels = pods["spec"]["template"]["metadata"]["labels"]
        for selector in (pods["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
            assert selector.items() <= labels.items(), f"{name}: a selector that selects nothing"
        count = pods["spec"]["replicas"]
        hosts = container["command"][container["command"].index("--hosts") + 1]
    else:
        assert pod["subdomain"] == service["metadata"]["name"], f"{name}: subdomain"
        assert service["spec"]["selector"] == {"job-name": pods["metadata"]["name"]}, f"{name}: a selector that selects nothing"
        count = pods["spec"]["completions"]
        assert pods["spec"]["parallelism"] == count, f"{name}: all pods run at a time"
        hosts = next(one["value"] for one in container["env"] if one["name"] == "TROUPE_HOSTS")
    assert hosts == str(count), f"{name}: {hosts} hosts, {count} pods"
    return pods, container, count


def run_pods(troupe, pods, container, count):
    """Runs the container's command as that many processes. Their program is another one."""
    where = tempfile.mkdtemp()
    processes = []
    try:
        os.mkdir(where + "/shared", 0o700)
        is_job = pods["kind"] == "Job"
        for rank in range(count):
            state = f"{where}/{rank}"
            os.mkdir(state, 0o700)
            command = [word.replace("/shared", where + "/shared").replace("/state", state) for word in container["command"]]
            own = command[1:command.index("--")] + ["--bind", "127.0.0.1", "--cpus", "1", "--wait", "120"]
            program = ["sh", "-c", f"{troupe} status | grep -c alive; exit 3"] if is_job else \
                ["sleep", "600"]
            environment = {"PATH": os.environ["PATH"], "HOME": where, "TMPDIR": where, "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                           "HOSTNAME": f"{pods['metadata']['name']}-{rank}"}
            environment.update((one["name"], one["value"].replace("/state", state)) for one in container["env"])
            if is_job:
                environment["JOB_COMPLETION_INDEX"] = str(rank)
            processes.append(subprocess.Popen([troupe] + own + ["--"] + program, env=environment, stdout=subprocess.PIPE,
                                              stderr=open(f"{where}/{rank}.err", "w"), text=True))
        if is_job:
            output = processes[0].communicate(timeout=240)[0]
            codes = [process.wait(timeout=120) for process in processes]
            assert codes == [3] + [0] * (count - 1), f"exit codes {codes}"
            assert str(count) in output.split(), f"not all nodes were there: {output}"
        else:  # jobs are submitted to it, as kubectl exec does in the first pod
            deadline = time.time() + 240
            environment = {"PATH": os.environ["PATH"], "HOME": where, "TROUPE_FOLDER": f"{where}/0/troupe"}

            def ask(*words):
                return subprocess.run([troupe, *words], env=environment, capture_output=True, text=True)
            while ask("status").stdout.count("alive") < count:
                assert time.time() < deadline, "the nodes do not come: " + ask("status").stdout
                time.sleep(0.2)
            job = ask("job", "submit", "--", troupe, "job", "submit", "--", "echo", "ran")  # a job that submits one
            assert "ran" in job.stdout, job.stdout + job.stderr
            processes[-1].send_signal(signal.SIGTERM)  # scaled down
            assert processes[-1].wait(timeout=120) is not None
            while ask("status").stdout.count("alive") != count - 1:
                assert time.time() < deadline, "the node that left is there: " + ask("status").stdout
                time.sleep(0.2)
    except BaseException:
        for rank in range(count):
            print(f"-- pod {rank}:", open(f"{where}/{rank}.err").read() if os.path.exists(f"{where}/{rank}.err") else "")
        raise
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(where, ignore_errors=True)


def main():
    troupe = os.path.abspath(sys.argv[1])
    for path in sys.argv[2:]:
        documents = list(yaml.safe_load_all(open(path)))
        for document in documents:
            check(document, SCHEMAS[document["kind"]], f"{os.path.basename(path)}: {document['kind']}")
        run_pods(troupe, *check_together(documents, os.path.basename(path)))
    # The check can fail.
    for wrong in ({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "x"}, "spec": {"clusterIp": "None"}},
                  {"kind": "Service", "apiVersion": "v1", "metadata": {}, "spec": {}}):
        try:
            check(wrong, SCHEMAS["Service"], "")
        except AssertionError:
            continue
        raise AssertionError(f"{wrong} is taken")


main()

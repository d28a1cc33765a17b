"""The Python client lives on the API server: every verb that its programs use. Fails by an exception."""

import json
import sys
import threading

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

NAMESPACE = "python"


def refused(code, reason, call, *arguments, **options):
    """Expects a refusal with this code and reason; gives its Status."""
    try:
        call(*arguments, **options)
    except ApiException as error:
        status = json.loads(error.body)
        assert (error.status, status["reason"]) == (code, reason), error.body
        return status
    raise AssertionError(f"{call.__name__} was not refused with {code} {reason}")


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"of": "python"}), data=data)


def verbs(core):
    made = core.create_namespaced_config_map(NAMESPACE, config_map("a", x="1"))
    assert made.metadata.uid and made.data == {"x": "1"}
    refused(409, "AlreadyExists", core.create_namespaced_config_map, NAMESPACE, config_map("a"))
    refused(404, "NotFound", core.read_namespaced_config_map, "none", NAMESPACE)
    # A stale write is refused, a fresh one is not.
    fresh = core.read_namespaced_config_map("a", NAMESPACE)
    stale = core.read_namespaced_config_map("a", NAMESPACE)
    fresh.data["x"] = "2"
    core.replace_namespaced_config_map("a", NAMESPACE, fresh)
    stale.data["x"] = "3"
    refused(409, "Conflict", core.replace_namespaced_config_map, "a", NAMESPACE, stale)
    # The client sends strategic merge patches for dictionaries and JSON patches for lists.
    core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"y": "4", "x": None}})
    core.patch_namespaced_config_map("a", NAMESPACE, [{"op": "add", "path": "/data/z", "value": "5"}])
    assert core.read_namespaced_config_map("a", NAMESPACE).data == {"y": "4", "z": "5"}
    status = refused(422, "Invalid", core.create_namespaced_config_map, NAMESPACE, config_map("B_"))
    assert status["details"]["causes"][0]["field"] == "metadata.name", status
    dry = core.create_namespaced_config_map(NAMESPACE, config_map("dry"), dry_run="All")
    assert dry.metadata.name == "dry"
    refused(404, "NotFound", core.read_namespaced_config_map, "dry", NAMESPACE)


def lists(core):
    for number in range(7):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"page-{number}", n=str(number)))
    seen, token, pages = [], None, 0
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=3, label_selector="of=python", _continue=token)
        pages += 1
        seen += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if pages == 1:
            # What comes meanwhile is not in the snapshot that is paged through.
            core.create_namespaced_config_map(NAMESPACE, config_map("page-late"))
        if not token:
            break
    assert seen == ["a"] + [f"page-{n}" for n in range(7)], seen
    assert pages == 3
    one = core.list_namespaced_config_map(NAMESPACE, field_selector="metadata.name=page-3")
    assert [item.metadata.name for item in one.items] == ["page-3"]
    refused(400, "BadRequest", core.list_namespaced_config_map, NAMESPACE, label_selector="a==b==c")
    refused(400, "BadRequest", core.list_namespaced_config_map, NAMESPACE, field_selector="spec.odd=1")
    refused(400, "BadRequest", core.list_namespaced_config_map, NAMESPACE, limit=1, _continue="nonsense")


def watches(core):
    revision = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    watcher, seen = watch.Watch(), []

    def writes():
        core.create_namespaced_config_map(NAMESPACE, config_map("watched"))
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "b"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)

    threading.Thread(target=writes).start()
    options = {"resource_version": revision, "timeout_seconds": 30}
    for event in watcher.stream(core.list_namespaced_config_map, NAMESPACE, **options):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watcher.stop()
    assert seen == [(kind, "watched") for kind in ("ADDED", "MODIFIED", "DELETED")], seen


def custom_resources(api):
    definitions = client.ApiextensionsV1Api(api)
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}}}},
    }
    definitions.create_custom_resource_definition({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.python.example"},
        "spec": {"group": "python.example", "scope": "Namespaced",
                 "names": {"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
                               "subresources": {"status": {}}}]}})
    for event in watch.Watch().stream(definitions.list_custom_resource_definition, timeout_seconds=30):
        conditions = event["object"].status.conditions or [] if event["object"].status else []
        if event["object"].metadata.name == "boxes.python.example" and any(
                c.type == "Established" and c.status == "True" for c in conditions):
            break
    else:
        raise AssertionError("the definition is not established")
    boxes = dynamic.DynamicClient(api).resources.get(api_version="python.example/v1", kind="Box")
    box = {"apiVersion": "python.example/v1", "kind": "Box", "metadata": {"name": "b"}, "spec": {"size": 2}}
    assert boxes.create(box, namespace=NAMESPACE).spec.color == "red"
    bad = dict(box, metadata={"name": "c"}, spec={"size": 0})
    try:
        boxes.create(bad, namespace=NAMESPACE)
    except dynamic.exceptions.UnprocessibleEntityError as error:
        assert "spec.size" in str(error.body), error.body
    else:
        raise AssertionError("a box of no size was taken")
    applied = boxes.server_side_apply(dict(box, spec={"size": 3}), namespace=NAMESPACE, field_manager="python", force_conflicts=True)
    assert applied.spec.size == 3
    assert [item.metadata.name for item in boxes.get(namespace=NAMESPACE).items] == ["b"]
    boxes.delete(name="b", namespace=NAMESPACE)
    definitions.delete_custom_resource_definition("boxes.python.example")


def scaled(apps, name, replicas):
    """As a client does it: read, change, write what was read, and again when somebody wrote in between. Here that may be the
    Deployment's controller, which tells of a pod that became ready."""
    while True:
        scale = apps.read_namespaced_deployment_scale(name, NAMESPACE)
        scale.spec.replicas = replicas
        try:
            return apps.replace_namespaced_deployment_scale(name, NAMESPACE, scale)
        except ApiException as problem:
            if problem.status != 409:
                raise


def workloads(api, image):
    apps, core = client.AppsV1Api(api), client.CoreV1Api(api)
    manifest = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shell"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "shell"}}, "template": {
            "metadata": {"labels": {"app": "shell"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "c", "image": image, "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "echo hello from python; sleep 3600"]}]}}}}
    utils.create_from_dict(api, manifest, namespace=NAMESPACE)
    pod = None
    for event in watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, label_selector="app=shell", timeout_seconds=120):
        ready = [c for c in event["object"].status.conditions or [] if c.type == "Ready" and c.status == "True"]
        if ready:
            pod = event["object"]
            break
    assert pod is not None, "no pod is ready"
    name = pod.metadata.name
    assert "hello from python" in core.read_namespaced_pod_log(name, NAMESPACE)
    said = stream(core.connect_get_namespaced_pod_exec, name, NAMESPACE, command=["sh", "-c", "echo $((6*7))"],
                  stderr=True, stdin=False, stdout=True, tty=False)
    assert said.strip() == "42", said
    talk = stream(core.connect_get_namespaced_pod_exec, name, NAMESPACE, command=["cat"],
                  stderr=True, stdin=True, stdout=True, tty=False, _preload_content=False)
    talk.write_stdin("through stdin\n")
    assert talk.readline_stdout(timeout=20) == "through stdin"
    talk.close()
    # Before it is scaled down, since then it may be gone.
    core.create_namespaced_pod_eviction(name, NAMESPACE, client.V1Eviction(metadata=client.V1ObjectMeta(name=name)))
    scaled(apps, "shell", 0)
    apps.delete_namespaced_deployment("shell", NAMESPACE, propagation_policy="Foreground")


def access(api):
    core, authorization = client.CoreV1Api(api), client.AuthorizationV1Api(api)
    core.create_namespaced_service_account(NAMESPACE, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="robot")))
    spec = client.V1TokenRequestSpec(audiences=[], expiration_seconds=600)
    request = client.AuthenticationV1TokenRequest(spec=spec) if hasattr(client, "AuthenticationV1TokenRequest") else None
    token = core.create_namespaced_service_account_token("robot", NAMESPACE, request).status.token
    robot = client.Configuration.get_default_copy()
    robot.api_key, robot.cert_file, robot.key_file = {"authorization": f"Bearer {token}"}, None, None
    as_robot = client.CoreV1Api(client.ApiClient(robot))
    refused(403, "Forbidden", as_robot.list_namespaced_secret, NAMESPACE)
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(
        resource_attributes=client.V1ResourceAttributes(verb="delete", resource="pods", namespace=NAMESPACE)))
    assert authorization.create_self_subject_access_review(review).status.allowed
    # A token of which one letter was changed is nobody's.
    at = len(token) // 2
    robot.api_key = {"authorization": "Bearer " + token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1:]}
    refused(401, "Unauthorized", client.CoreV1Api(client.ApiClient(robot)).list_namespaced_secret, NAMESPACE)


def main(image):
    config.load_kube_config()
    api = client.ApiClient()
    core = client.CoreV1Api(api)
    assert client.VersionApi(api).get_code().git_version.startswith("v1.36"), "another version"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    for step in (lambda: verbs(core), lambda: lists(core), lambda: watches(core), lambda: custom_resources(api),
                 lambda: access(api), lambda: workloads(api, image)):
        step()
    core.delete_namespace(NAMESPACE)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])

//! Workloads as people drive them: rolled out, changed, looked back at, undone and scaled, with kubectl on a real node.

use carrack_e2e::{Sandbox, assert_contains, eventually_true};

fn manifest(kind: &str, name: &str, more: &str, command: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {more}\n  selector: {{matchLabels: {{app: {name}}}}}\n  \
         template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      \
         containers: [{{name: main, image: 'localhost/carrack/busybox:0.1.0', command: [sh, -c, '{command}']}}]\n"
    )
}

#[test]
fn deployments_are_rolled_out_undone_and_scaled() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&manifest("Deployment", "web", "replicas: 3", "sleep 3600"));
    let status = ["rollout", "status", "deployment/web", "--timeout=120s"];
    assert_contains(&kubectl.ok(&status), &["deployment \"web\" successfully rolled out"]);

    kubectl.ok(&["set", "env", "deployment/web", "VERSION=2"]);
    kubectl.ok(&status);
    let history = kubectl.ok(&["rollout", "history", "deployment/web"]);
    assert_contains(&history, &["REVISION", "1 ", "2 "]);
    let env =
        || kubectl.ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}"]);
    eventually_true("only pods of the second revision are there", 60, || env() == "2 2 2");

    kubectl.ok(&["rollout", "undo", "deployment/web"]);
    kubectl.ok(&status);
    eventually_true("only pods of the first revision are there", 60, || env().is_empty());
    let revision = kubectl.field("deployment", "web", "/metadata/annotations/deployment.kubernetes.io~1revision");
    assert_eq!(revision, "3");

    kubectl.ok(&["scale", "deployment/web", "--replicas=1"]);
    eventually_true("one pod is left", 60, || {
        kubectl.ok(&["get", "pods", "-l", "app=web", "-o", "name"]).lines().count() == 1
    });
    // An image that is not there: the old pod goes on, and the rollout does not come to its end.
    kubectl.ok(&["set", "image", "deployment/web", "main=localhost/carrack/none:1"]);
    let stuck = kubectl.fails(&["rollout", "status", "deployment/web", "--timeout=3s"]);
    assert_contains(&stuck, &["timed out"]);
    assert_eq!(kubectl.field("deployment", "web", "/status/availableReplicas"), 1);
    kubectl.ok(&["rollout", "undo", "deployment/web"]);
    kubectl.ok(&status);

    kubectl.ok(&["delete", "deployment/web", "--timeout=60s"]);
    eventually_true("the pods go with their Deployment", 60, || {
        kubectl.ok(&["get", "pods,rs", "-l", "app=web", "-o", "name"]).is_empty()
    });
}

#[test]
fn sets_and_jobs_come_to_their_ends() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&manifest("StatefulSet", "db", "replicas: 2\n  serviceName: db", "hostname; sleep 3600"));
    kubectl.apply(&manifest("DaemonSet", "agent", "updateStrategy: {type: RollingUpdate}", "sleep 3600"));
    kubectl.apply(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: sums}\nspec:\n  completions: 2\n  completionMode: Indexed\n  \
         template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: main, image: \
         'localhost/carrack/busybox:0.1.0', command: [sh, -c, 'echo index $JOB_COMPLETION_INDEX']}]\n",
    );
    kubectl.ok(&["rollout", "status", "statefulset/db", "--timeout=120s"]);
    assert_eq!(kubectl.ok(&["logs", "db-1"]).trim(), "db-1");
    kubectl.ok(&["rollout", "status", "daemonset/agent", "--timeout=120s"]);
    kubectl.ok(&["wait", "--for=condition=Complete", "job/sums", "--timeout=120s"]);
    assert_eq!(kubectl.field("job", "sums", "/status/completedIndexes"), "0,1");

    kubectl.ok(&["rollout", "restart", "daemonset/agent", "statefulset/db"]);
    kubectl.ok(&["rollout", "status", "daemonset/agent", "--timeout=120s"]);
    kubectl.ok(&["rollout", "status", "statefulset/db", "--timeout=120s"]);
    assert_contains(&kubectl.ok(&["rollout", "history", "statefulset/db"]), &["1", "2"]);
    kubectl.ok(&["rollout", "undo", "statefulset/db"]);
    kubectl.ok(&["rollout", "status", "statefulset/db", "--timeout=120s"]);

    kubectl.ok(&[
        "create",
        "cronjob",
        "tick",
        "--image=localhost/carrack/busybox:0.1.0",
        "--schedule=* * * * *",
        "--",
        "true",
    ]);
    kubectl.ok(&["create", "job", "--from=cronjob/tick", "by-hand"]);
    kubectl.ok(&["wait", "--for=condition=Complete", "job/by-hand", "--timeout=60s"]);
}

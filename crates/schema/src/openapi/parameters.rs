//! The parameters of queries: names and types, as upstream's documents have them.
//!
//! Parameters of lists and writes are the fields of `ListOptions`, `CreateOptions` and so on
//! (`k8s.io/apimachinery/pkg/apis/meta/v1/types.go`), those of connections the fields of `PodExecOptions` and its like
//! (`k8s.io/api/core/v1/types.go`). What this server has no use for is left out.

/// Name and type.
pub(super) type Parameter = (&'static str, &'static str);

const GET: &[Parameter] = &[("pretty", "string")];

/// Of lists and watches.
pub(super) const LIST: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("pretty", "string"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];

const WRITE: &[Parameter] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("pretty", "string")];

const PATCH: &[Parameter] = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("force", "boolean"),
    ("pretty", "string"),
];

const DELETE: &[Parameter] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("pretty", "string"),
    ("propagationPolicy", "string"),
];

const DELETE_COLLECTION: &[Parameter] = &[
    ("continue", "string"),
    ("dryRun", "string"),
    ("fieldSelector", "string"),
    ("gracePeriodSeconds", "integer"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("orphanDependents", "boolean"),
    ("pretty", "string"),
    ("propagationPolicy", "string"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
];

/// Of a pod's logs.
pub(super) const LOG: &[Parameter] = &[
    ("container", "string"),
    ("follow", "boolean"),
    ("limitBytes", "integer"),
    ("pretty", "string"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("stream", "string"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
];

const EXEC: &[Parameter] = &[
    ("command", "string"),
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];

const ATTACH: &[Parameter] =
    &[("container", "string"), ("stderr", "boolean"), ("stdin", "boolean"), ("stdout", "boolean"), ("tty", "boolean")];

const PORT_FORWARD: &[Parameter] = &[("ports", "integer")];
const PROXY: &[Parameter] = &[("path", "string")];

/// Those of an action on objects.
pub(super) fn of_action(action: &str) -> &'static [Parameter] {
    match action {
        "list" => LIST,
        "deletecollection" => DELETE_COLLECTION,
        "post" | "put" => WRITE,
        "patch" => PATCH,
        "delete" => DELETE,
        _ => GET,
    }
}

/// Those of a connection, by the kind of its options.
pub(super) fn of_connection(options: &str) -> &'static [Parameter] {
    match options {
        "PodExecOptions" => EXEC,
        "PodAttachOptions" => ATTACH,
        "PodPortForwardOptions" => PORT_FORWARD,
        _ => PROXY,
    }
}

//! What is written in a machine's life while nothing fails: by whom, and how often at most for one instance.

use std::collections::BTreeMap;

use carrack_sim::Outcome;

/// Who writes what, how often at most, and why.
///
/// Writes of creation have no name in their path; they are one for each object. Requests take their time in the simulator, so that
/// steps which are told together on a quick machine may be told one by one.
const MOST: [(&str, &str, &str, u32); 13] = [
    // The extender of the simulated cluster notes what it gives; and again, when the scheduler's lead lapsed in the cycle that it
    // was for, since a renewal took long.
    ("extender", "PATCH", "pods", 2),
    ("scheduler", "POST", "pods/binding", 1),
    // It has to wait then, and says so; and again when it is something else that it waits for.
    ("scheduler", "PATCH", "pods/status", 2),
    // It runs and is ready; it has ended, in two steps when its containers do not end together.
    ("kubelet", "PATCH", "pods/status", 3),
    ("virt-controller", "DELETE", "pods", 1),
    // Nothing of it is left on the node.
    ("kubelet", "DELETE", "pods", 1),
    // It is handed over; on its way there, when that takes long, once more for each reason for which it had to wait for a node, and
    // to its end; its finalizer, when its handler has not told its end with it.
    ("virt-controller", "PATCH", "virtualmachineinstances", 6),
    // The term in which it runs, that it runs, and that it has ended.
    ("virt-handler", "PATCH", "virtualmachineinstances", 3),
    ("virt-controller", "DELETE", "virtualmachineinstances", 1),
    ("user", "PATCH", "virtualmachines", 4),
    ("user", "DELETE", "virtualmachines", 1),
    // Made; starts, waits for a node, and starts again when that takes long; runs; stops; its instance has ended, its pod has, and
    // it is gone.
    ("virt-controller", "PATCH", "virtualmachines/status", 9),
    ("virt-controller", "PATCH", "virtualmachines", 1),
];

/// Holds each write of launchers and of the machine's instances to the table. A write that is not in it is one too many.
pub(crate) fn are_few(outcome: &Outcome) {
    let mut written: BTreeMap<(String, String, String, String), u32> = BTreeMap::new();
    for line in outcome.trace.text().lines() {
        let Some((role, verb, what, name)) = write(line) else { continue };
        *written.entry((role, verb, what, name)).or_default() += 1;
    }
    assert!(written.keys().any(|(_, _, what, _)| what == "pods/binding"), "no machine was started");
    for ((role, verb, what, name), count) in &written {
        let most =
            MOST.iter().find(|(by, how, of, _)| (*by, *how, *of) == (role.as_str(), verb.as_str(), what.as_str()));
        let most = most.map_or(0, |(.., most)| *most);
        assert!(*count <= most, "{role} writes {name} {count} times ({verb} {what}), and not {most}");
    }
}

/// A write that went through, of a launcher, a machine or a machine's instance: role, verb, what is written, and which.
fn write(line: &str) -> Option<(String, String, String, String)> {
    let (head, status) = line.split_once(" → ")?;
    let mut words = head.split_whitespace().skip(1);
    let (role, verb, path) = (words.next()?, words.next()?, words.next()?);
    if !status.starts_with("20") || verb == "GET" || status.contains("is lost") {
        return None;
    }
    let (_, path) = path.split_once("/namespaces/default/")?;
    let mut parts = path.split('/');
    let (plural, name) = (parts.next()?, parts.next()?);
    let concerned = match plural {
        "pods" => name.starts_with("virt-launcher-"),
        "virtualmachines" | "virtualmachineinstances" => true,
        _ => false,
    };
    let what = parts.next().map_or_else(|| plural.to_owned(), |sub| format!("{plural}/{sub}"));
    let role = role.split('/').next()?;
    concerned.then(|| (role.to_owned(), verb.to_owned(), what, name.to_owned()))
}

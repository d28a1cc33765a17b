//! Removing the pod network: links on the bridge, the bridge, the rules that CNI plugins made for this network, and those that keep
//! pods from the machine's loopback addresses.
//!
//! CNI DEL normally does all of it; this is for pods whose containerd or plugins were killed midway. The plugins mark
//! each rule with the network's name in a comment (`name: "carrack" id: "…"`), which tells ours from others'.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::host::find_program;
use crate::layout::Layout;

/// How long one call of a network tool may take.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// Removes links and rules, and the bridge between several nodes where there is one. Returns how many.
///
/// # Errors
/// A tool is missing or refused, or a link stays.
pub async fn remove(layout: &Layout, nodes_bridge: Option<&str>) -> io::Result<usize> {
    let between_nodes = match nodes_bridge {
        Some(bridge) => remove_links(bridge).await?,
        None => 0,
    };
    let guards = remove_guard(&layout.loopback_table()).await;
    Ok(between_nodes + remove_links(&layout.bridge()).await? + remove_rules(&layout.cni_network()).await? + guards)
}

/// Removes the table that keeps pods from this machine's loopback addresses, if it is there.
async fn remove_guard(table: &str) -> usize {
    usize::from(run("nft", &["delete", "table", "ip", table], "").await.is_ok())
}

async fn remove_links(bridge: &str) -> io::Result<usize> {
    let mut count = 0;
    // The kernel drops a dead namespace's links in its own time, so one listed now may be gone when it is deleted.
    for link in links(&["link", "show", "master", bridge]).await? {
        count += usize::from(run("ip", &["link", "delete", &link], "").await.is_ok());
    }
    if links(&["link", "show", "dev", bridge]).await?.is_empty() {
        return Ok(count);
    }
    run("ip", &["link", "delete", bridge], "").await?;
    Ok(count + 1)
}

/// The names that `ip -json …` lists; none when the bridge does not exist.
async fn links(arguments: &[&str]) -> io::Result<Vec<String>> {
    let arguments: Vec<&str> = ["-json"].into_iter().chain(arguments.iter().copied()).collect();
    let text = match run("ip", &arguments, "").await {
        Ok(text) => text,
        Err(error) if error.to_string().contains("does not exist") => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let value: serde_json::Value = serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text })?;
    let names = value.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str().map(str::to_owned));
    Ok(names.collect())
}

async fn remove_rules(network: &str) -> io::Result<usize> {
    let saved = run("iptables-save", &["-t", "nat"], "").await?;
    let mut count = 0;
    if let Some((script, rules)) = removal_script(&saved, network) {
        run("iptables-restore", &["--noflush"], &script).await?;
        count += rules;
    }
    // iptables makes the whole table for its first rule. Once it is empty it says nothing and can go.
    if !saved.is_empty()
        && is_empty_table(&run("nft", &["-j", "list", "table", "ip", "nat"], "").await.unwrap_or_default())
    {
        run("nft", &["delete", "table", "ip", "nat"], "").await?;
    }
    // A kernel without that table has none of them; it is there only where somebody else has made it.
    let filter = run("iptables-save", &["-t", "filter"], "").await.unwrap_or_default();
    if let Some((script, rules)) = passing_script(&filter, network) {
        run("iptables-restore", &["--noflush"], &script).await?;
        count += rules;
    }
    Ok(count)
}

/// The mark of a network's rules, as `iptables-save` writes it.
fn mark(network: &str) -> String {
    format!("name: \\\"{network}\\\" id:")
}

/// The script that takes out the rules by which this machine passes on what pods of `network` send. `None` when there are none.
fn passing_script(saved: &str, network: &str) -> Option<(String, usize)> {
    let mark = mark(network);
    let ours = saved.lines().filter(|line| line.starts_with("-A FORWARD ") && line.contains(&mark));
    let deletions: Vec<String> = ours.map(|line| line.replacen("-A ", "-D ", 1)).collect();
    (!deletions.is_empty()).then(|| (format!("*filter\n{}\nCOMMIT\n", deletions.join("\n")), deletions.len()))
}

/// The `iptables-restore` script that takes out all rules and chains of `network` from a saved nat table, and the host
/// port chains when no network uses them any more. `None` when there is nothing to take out.
fn removal_script(saved: &str, network: &str) -> Option<(String, usize)> {
    let mark = mark(network);
    let target =
        |rule: &str| rule.rsplit_once(" -j ").map(|(_, rest)| rest.split(' ').next().unwrap_or(rest).to_owned());
    let chain_of = |rule: &str| rule.split(' ').nth(1).unwrap_or_default().to_owned();
    let rules: Vec<&str> = saved.lines().filter(|line| line.starts_with("-A ")).collect();
    let (ours, others): (Vec<&str>, Vec<&str>) = rules.iter().partition(|rule| rule.contains(&mark));

    let mut chains: BTreeSet<String> =
        ours.iter().filter_map(|rule| target(rule)).filter(|name| is_per_container(name)).collect();
    let mut deletions: Vec<&str> = ours.iter().copied().filter(|rule| !chains.contains(&chain_of(rule))).collect();
    let host_ports_in_use = others
        .iter()
        .any(|rule| target(rule).is_some_and(|name| name.starts_with("CNI-DN-") && !chains.contains(&name)));
    if !host_ports_in_use {
        let shared = saved
            .lines()
            .filter_map(|line| line.strip_prefix(":CNI-HOSTPORT-"))
            .filter_map(|rest| rest.split(' ').next());
        chains.extend(shared.map(|name| format!("CNI-HOSTPORT-{name}")));
        deletions.retain(|rule| !chains.contains(&chain_of(rule)));
        let jumps = others.iter().copied().filter(|rule| {
            target(rule).is_some_and(|name| name.starts_with("CNI-HOSTPORT-")) && !chains.contains(&chain_of(rule))
        });
        deletions.extend(jumps);
    }
    if chains.is_empty() && deletions.is_empty() {
        return None;
    }
    let count = deletions.len() + chains.len();
    let mut script = String::from("*nat\n");
    let mut line = |text: String| {
        if writeln!(script, "{text}").is_err() {
            tracing::error!("a line of the removal script was lost");
        }
    };
    for rule in deletions {
        line(rule.replacen("-A ", "-D ", 1));
    }
    for chain in &chains {
        line(format!("-F {chain}"));
    }
    for chain in &chains {
        line(format!("-X {chain}"));
    }
    line("COMMIT".to_owned());
    Some((script, count))
}

/// `CNI-<24 digits>` and `CNI-DN-<21 digits>` belong to one container; `CNI-HOSTPORT-…` to all.
fn is_per_container(chain: &str) -> bool {
    chain.starts_with("CNI-") && !chain.starts_with("CNI-HOSTPORT-")
}

/// Whether `nft -j list table` shows only accepting base chains without a rule.
fn is_empty_table(json: &str) -> bool {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(json) else {
        return false;
    };
    let Some(items) = value["nftables"].as_array() else {
        return false;
    };
    items.iter().filter_map(serde_json::Value::as_object).all(|item| match item.keys().next().map(String::as_str) {
        Some("metainfo" | "table") => true,
        Some("chain") => item["chain"]["policy"].as_str() == Some("accept"),
        _ => false,
    })
}

async fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let path = find_program(program)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{program} is not installed")))?;
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let output = tokio::time::timeout(CALL_LIMIT, child.wait_with_output())
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("{program} did not end")))??;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), message.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-1111 - [0:0]
:CNI-2222 - [0:0]
:CNI-DN-aaaa - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.42.0.2/32 -m comment --comment "name: \"carrack\" id: \"x\"" -j CNI-1111
-A POSTROUTING -s 10.43.0.2/32 -m comment --comment "name: \"carrack-12\" id: \"y\"" -j CNI-2222
-A CNI-1111 -d 10.42.0.0/24 -m comment --comment "name: \"carrack\" id: \"x\"" -j ACCEPT
-A CNI-2222 -d 10.43.0.0/24 -m comment --comment "name: \"carrack-12\" id: \"y\"" -j ACCEPT
-A CNI-DN-aaaa -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.42.0.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"carrack\" id: \"x\"" -m multiport --dports 80 -j CNI-DN-aaaa
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
COMMIT
"#;

    #[test]
    fn only_the_named_networks_rules_go() {
        let (script, count) = removal_script(SAVED, "carrack").expect("something to remove");
        let expected = r#"*nat
-D POSTROUTING -s 10.42.0.2/32 -m comment --comment "name: \"carrack\" id: \"x\"" -j CNI-1111
-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-F CNI-1111
-F CNI-DN-aaaa
-F CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-SETMARK
-X CNI-1111
-X CNI-DN-aaaa
-X CNI-HOSTPORT-DNAT
-X CNI-HOSTPORT-SETMARK
COMMIT
"#;
        assert_eq!(script, expected);
        assert_eq!(count, 6);
    }

    #[test]
    fn host_port_chains_stay_while_another_network_uses_them() {
        let (script, _) = removal_script(SAVED, "carrack-12").expect("something to remove");
        let expected = r#"*nat
-D POSTROUTING -s 10.43.0.2/32 -m comment --comment "name: \"carrack-12\" id: \"y\"" -j CNI-2222
-F CNI-2222
-X CNI-2222
COMMIT
"#;
        assert_eq!(script, expected);
        assert_eq!(removal_script("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", "carrack"), None);
    }

    #[test]
    fn others_rules_for_what_is_passed_on_stay() {
        let saved = r#"*filter
:FORWARD DROP [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -i cni0 -m comment --comment "name: \"carrack\" id: \"pods\"" -j ACCEPT
-A FORWARD -i cni-12 -m comment --comment "name: \"carrack-12\" id: \"pods\"" -j ACCEPT
COMMIT
"#;
        let deletion = r#"-D FORWARD -i cni0 -m comment --comment "name: \"carrack\" id: \"pods\"" -j ACCEPT"#;
        assert_eq!(passing_script(saved, "carrack"), Some((format!("*filter\n{deletion}\nCOMMIT\n"), 1)));
        assert_eq!(passing_script(saved, "carrack-13"), None);
        assert_eq!(passing_script("", "carrack"), None);
    }

    #[test]
    fn a_table_with_a_rule_or_a_foreign_chain_is_not_empty() {
        let chain = r#"{"chain":{"family":"ip","table":"nat","name":"A","type":"nat","hook":"prerouting","prio":-100,"policy":"accept"}}"#;
        let table = |items: &str| {
            format!(r#"{{"nftables":[{{"metainfo":{{}}}},{{"table":{{"family":"ip","name":"nat"}}}}{items}]}}"#)
        };
        assert!(is_empty_table(&table(&format!(",{chain}"))));
        assert!(!is_empty_table(&table(&format!(",{chain},{{\"rule\":{{}}}}"))));
        assert!(!is_empty_table(&table(r#",{"chain":{"name":"X"}}"#)));
        assert!(!is_empty_table(""));
    }
}

//! Tokens of the pod's service account for CSI drivers, and drivers that want to be called again.

use super::*;

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// A volume of a pod's own, whose driver says this of itself besides.
fn inline(says: serde_json::Value) -> (Pod, Fixed) {
    let mut driver =
        json!({"kind": "CSIDriver", "metadata": {"name": "d"}, "spec": {"volumeLifecycleModes": ["Ephemeral"]}});
    for (key, value) in says.as_object().unwrap() {
        driver["spec"][key] = value.clone();
    }
    (pod(json!([{"name": "v", "csi": {"driver": "d"}}])), Fixed { objects: vec![driver], ..Fixed::default() })
}

/// What the driver is told when the volume is published, at this time.
fn published(v: &mut Volumes, now: Time, pod: &Pod, sources: &Fixed) -> Option<Publishing> {
    let actions = v.wanted(now, pod, &NodeConfig::default(), &Place::default(), sources);
    let (_, version) = v.journal(pod, &NodeConfig::default());
    v.journal_saved("u", version);
    let [VolumeAction::SetUp(setup)] = &actions[..] else {
        assert!(actions.is_empty(), "{actions:?}");
        return None;
    };
    let VolumeKind::Published(p) = setup.kind.clone() else { panic!("{setup:?}") };
    v.started("u", "v", OpId(7), Some(setup.kind.clone()));
    assert_eq!(v.done(now, "u", "v", OpId(7), &Ok(Reply::Done)), None);
    Some(*p)
}

#[test]
fn drivers_get_the_tokens_that_they_ask_for() {
    let asks = json!([{"audience": "vault", "expirationSeconds": 600}, {"audience": ""}]);
    let all = json!({
        "vault": {"token": "token for vault", "expirationTimestamp": "2026-01-01T00:00:00Z"},
        "": {"token": "token for ", "expirationTimestamp": "2026-01-01T00:00:00Z"},
    });
    for (says, in_context, in_secrets) in [
        (json!({}), None, None),
        (json!({"tokenRequests": []}), None, None),
        (json!({"tokenRequests": asks}), Some(&all), None),
        (json!({"tokenRequests": asks, "serviceAccountTokenInSecrets": true}), None, Some(&all)),
    ] {
        let (pod, sources) = inline(says.clone());
        let mut v = Volumes::default();
        assert_eq!(published(&mut v, Time(0), &pod, &sources), None, "not before the record names it");
        let p = published(&mut v, Time(0), &pod, &sources).expect("published");
        let told = |of: &Secrets| of.0.get(TOKENS).map(|text| serde_json::from_slice(text).expect("JSON"));
        assert_eq!(told(&p.tokens).as_ref(), in_context, "{says}");
        assert_eq!(told(&p.secrets).as_ref(), in_secrets, "{says}");
        assert!(!format!("{p:?}").contains("token for"), "tokens are not shown: {p:?}");
    }
}

#[test]
fn a_driver_that_wants_it_is_called_again() {
    for (says, again) in [(json!({"requiresRepublish": true}), true), (json!({}), false)] {
        let (pod, sources) = inline(says);
        let mut v = Volumes::default();
        published(&mut v, Time(0), &pod, &sources);
        assert!(published(&mut v, Time(0), &pod, &sources).is_some());
        assert_eq!(v.next_republish("u").is_some(), again);
        assert_eq!(published(&mut v, Time(0) + REPUBLISH / 2, &pod, &sources), None);
        assert_eq!(published(&mut v, Time(0) + REPUBLISH, &pod, &sources).is_some(), again);
        assert_eq!(published(&mut v, Time(0) + REPUBLISH, &pod, &sources), None, "once a time");
    }
}

#[test]
fn a_failed_call_leaves_what_is_there() {
    let (pod, sources) = inline(json!({"requiresRepublish": true}));
    let mut v = Volumes::default();
    published(&mut v, Time(0), &pod, &sources);
    published(&mut v, Time(0), &pod, &sources).expect("published");
    let later = Time(0) + REPUBLISH;
    let actions = v.wanted(later, &pod, &NodeConfig::default(), &Place::default(), &sources);
    let [VolumeAction::SetUp(setup)] = &actions[..] else { panic!("{actions:?}") };
    v.started("u", "v", OpId(8), Some(setup.kind.clone()));
    assert!(v.done(later, "u", "v", OpId(8), &Err(OpError::TimedOut(120))).is_some());
    assert!(v.ready(&pod).is_ok(), "it is there as it was");
    let broken = Fixed { broken: Some(NotReady::Failed("down".into())), ..Fixed::default() };
    let actions = v.wanted(later + REPUBLISH, &pod, &NodeConfig::default(), &Place::default(), &broken);
    assert_eq!(actions, Vec::new());
    assert!(v.ready(&pod).is_ok(), "nor does an API that is away take it");
    assert_eq!(
        (v.next_republish("u"), v.next_retry("u")),
        (Some(Time(0) + REPUBLISH), None),
        "and it is looked at again"
    );
}

/// After a restart the volume is looked for without what it is made of. Where it is not there, and all that is read anew each time,
/// its driver is called as soon as that is read.
#[test]
fn what_is_not_found_again_waits_for_what_is_read() {
    let (pod, there) = inline(json!({"requiresRepublish": true}));
    let broken = |why: NotReady| Fixed { broken: Some(why), ..Fixed::default() };
    let (pending, away) = (broken(NotReady::Pending), broken(NotReady::Failed("down".into())));
    let mut before = Volumes::default();
    published(&mut before, Time(0), &pod, &there);
    let (entries, version) = before.journal(&pod, &NodeConfig::default());
    let mut v = Volumes::default();
    v.restore(&"u".into(), &pod, &entries, None);
    v.journal_saved("u", version);
    let mut now = Time(0);
    // With what the driver is called in the end, if it is.
    for (sources, expected) in
        [(&pending, Some(true)), (&pending, None), (&away, Some(true)), (&pending, None), (&there, Some(false))]
    {
        now = now + Duration::from_secs(300);
        let actions = v.wanted(now, &pod, &NodeConfig::default(), &Place::default(), sources);
        let setup = actions.first().map(|action| match action {
            VolumeAction::SetUp(setup) => setup.kind.clone(),
            VolumeAction::TearDown { .. } => panic!("{action:?}"),
        });
        let Some(kind) = setup else {
            assert_eq!(expected, None, "{now:?}");
            continue;
        };
        let VolumeKind::Published(p) = &kind else { panic!("{kind:?}") };
        assert_eq!(Some(p.confirm_only), expected, "{now:?}");
        v.started("u", "v", OpId(7), Some(kind.clone()));
        assert!(v.done(now, "u", "v", OpId(7), &Err(OpError::Failed("nothing is there".into()))).is_some());
    }
}

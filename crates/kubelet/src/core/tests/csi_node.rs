//! Whose the CSINode is.

use super::*;
use crate::volumes::CsiNodeInfo;

const NODE: &str = "/api/v1/nodes/sim";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/sim";

fn driver_up(w: &mut World) {
    let info = CsiNodeInfo { node_id: "sim".into(), max_volumes: 0, topology: BTreeMap::new() };
    w.input(Input::Own(In::CsiUp { driver: "disks.example".into(), info }));
    w.run(5);
}

/// Of a Node that goes all goes that is its own, sooner or later, also where another one of its name is there by then.
#[test]
fn it_is_of_the_node_that_is_there() {
    for (is_collected, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let what = format!("collected {is_collected}, restarts {restarts}");
        let mut w = World::new(7);
        w.edit_or_create_node();
        driver_up(&mut w);
        assert_eq!(w.api.objects[CSI_NODE]["metadata"]["ownerReferences"][0]["uid"], "uid-sim", "{what}");
        let news = w.api.remove(NODE);
        w.tell(news);
        w.run(1);
        if is_collected {
            assert!(w.api.remove(CSI_NODE).is_empty(), "nobody watches it");
        }
        let news = w.api.put(NODE, json!({"metadata": {"name": "sim", "uid": "uid-other"}}));
        w.tell(news);
        if restarts {
            w.restart_kubelet();
            driver_up(&mut w);
        }
        w.run(20);
        let csi_node = w.api.objects.get(CSI_NODE).unwrap_or_else(|| panic!("{what}: there is none"));
        let owners = csi_node["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(matches!(owners, [owner] if owner["uid"] == "uid-other"), "{what}: {csi_node}");
        assert_eq!(csi_node["spec"]["drivers"][0]["name"], "disks.example", "{what}");
    }
}

/// The API takes all of it or nothing.
#[test]
fn a_driver_that_cannot_be_entered_keeps_no_other_out() {
    let mut w = World::new(8);
    w.edit_or_create_node();
    let topology = BTreeMap::from([("bad.example/rack".to_owned(), "rack 7".to_owned())]);
    let info = CsiNodeInfo { node_id: "sim".into(), max_volumes: 0, topology };
    w.input(Input::Own(In::CsiUp { driver: "bad.example".into(), info }));
    driver_up(&mut w);
    let drivers = w.api.objects[CSI_NODE]["spec"]["drivers"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(matches!(drivers, [one] if one["name"] == "disks.example"), "{drivers:?}");
    assert!(w.api.objects[NODE]["metadata"]["labels"]["bad.example/rack"].is_null());
}

/// Who keeps an entry that is to go is told so every ten seconds.
#[test]
fn an_entry_that_stays_is_not_taken_out_again_and_again() {
    let writes = |w: &World| w.api.history.iter().filter(|(_, path, _)| path == CSI_NODE).count();
    let mut w = World::new(9);
    w.edit_or_create_node();
    driver_up(&mut w);
    w.api.unkept = Some(("csinodes", "drivers"));
    let topology = BTreeMap::from([("disks.example/zone".to_owned(), "1".to_owned())]);
    let info = CsiNodeInfo { node_id: "sim".into(), max_volumes: 0, topology };
    w.input(Input::Own(In::CsiUp { driver: "disks.example".into(), info }));
    w.run(15);
    let before = writes(&w);
    w.run(60);
    let again = writes(&w) - before;
    assert!((5..=7).contains(&again), "{again} writes in a minute");
    w.api.unkept = None;
    w.run(15);
    assert_eq!(w.api.objects[CSI_NODE]["spec"]["drivers"][0]["topologyKeys"], json!(["disks.example/zone"]));
}

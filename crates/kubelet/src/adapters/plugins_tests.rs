//! A device plugin and the kubelet's side of the protocol, over real sockets.

use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::*;
use carrack_deviceplugin::DevicePluginOptions;
use carrack_deviceplugin::testing::{Answer, Call, Plugin};

const RESOURCE: &str = "devices.kubevirt.io/kvm";

/// The kubelet's side, with what it reports.
fn kubelet(dir: &Path) -> (Plugins, JoinHandle<()>, mpsc::UnboundedReceiver<In>) {
    let (to, from) = mpsc::unbounded_channel();
    let plugins = Plugins::new(dir.to_owned(), move |event| drop(to.send(event)));
    let task = plugins.serve().unwrap();
    (plugins, task, from)
}

async fn next(events: &mut mpsc::UnboundedReceiver<In>) -> In {
    tokio::time::timeout(Duration::from_secs(60), events.recv()).await.expect("an event in time").unwrap()
}

async fn up(events: &mut mpsc::UnboundedReceiver<In>) -> u64 {
    match next(events).await {
        In::PluginUp { resource, epoch, .. } if resource == RESOURCE => epoch,
        other => panic!("{other:?}"),
    }
}

async fn listed(events: &mut mpsc::UnboundedReceiver<In>, of: u64) -> Vec<(String, bool)> {
    match next(events).await {
        In::PluginDevices { epoch, devices, .. } if epoch == of => {
            devices.into_iter().map(|d| (d.id, d.healthy)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// What is told of a plugin that was refused: its resource, and why.
async fn refused(events: &mut mpsc::UnboundedReceiver<In>) -> (String, String) {
    match next(events).await {
        In::PluginRefused { resource, why } => (resource, why),
        other => panic!("{other:?}"),
    }
}

fn ids(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// Two that register for one resource at once must not be announced in one order and kept in the other.
#[tokio::test]
async fn nobody_else_registers_between_an_announcement_and_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (to, mut announced) = mpsc::unbounded_channel();
    let kept: Arc<std::sync::OnceLock<Plugins>> = Arc::default();
    let of = kept.clone();
    let plugins = Plugins::new(dir.path().to_owned(), move |event| {
        if matches!(event, In::PluginUp { .. }) {
            let is_alone = of.get().is_some_and(|plugins| plugins.0.plugins.try_lock().is_err());
            _ = to.send(is_alone);
        }
    });
    let task = plugins.serve().unwrap();
    assert!(kept.set(plugins).is_ok());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, &[("a", true)]);
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    assert_eq!(announced.recv().await, Some(true));
    task.abort();
}

#[tokio::test]
async fn a_plugin_registers_lists_allocates_dies_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (plugins, kubelet_task, mut events) = kubelet(dir);
    let mut plugin = Plugin::new(dir, RESOURCE, &[("a", true), ("b", true)]);
    plugin.behave(|b| {
        b.options = DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
        b.cdi_devices = vec!["vendor.io/gpu=0".into()];
        b.numa = [("b".to_owned(), 1)].into();
    });
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    let In::PluginUp { epoch: first, options, .. } = next(&mut events).await else { panic!("no registration") };
    assert!(options.pre_start_required && options.preferred_allocation);
    let In::PluginDevices { devices, .. } = next(&mut events).await else { panic!("no list") };
    assert_eq!(devices.iter().map(|d| (d.id.as_str(), d.numa_nodes.len())).collect::<Vec<_>>(), [("a", 0), ("b", 1)]);

    let reply = plugins.allocate(RESOURCE, first, ids(&["a"])).await.unwrap();
    assert_eq!((reply.env["TEST_DEVICES"].as_str(), reply.cdi_devices[0].as_str()), ("a", "vendor.io/gpu=0"));
    assert_eq!(plugins.prefer(RESOURCE, first, (ids(&["a", "b"]), ids(&["a"])), 1).await.unwrap(), ["a"]);
    assert_eq!(plugins.prefer(RESOURCE, first, (ids(&["a", "b"]), ids(&[])), 1).await.unwrap(), ["b"]);
    plugins.pre_start(RESOURCE, first, ids(&["a"])).await.unwrap();
    let a = || vec!["a".to_owned()];
    assert_eq!(
        plugin.calls(),
        [
            Call::Allocate(a()),
            Call::Prefer(vec!["a".into(), "b".into()], 1),
            Call::Prefer(vec!["a".into(), "b".into()], 1),
            Call::PreStart(a())
        ]
    );

    plugin.list(&[("a", false)]);
    assert_eq!(listed(&mut events, first).await, [("a".into(), false)]);

    // It dies: it hangs up, and its epoch is over.
    plugin.die();
    assert!(matches!(next(&mut events).await, In::PluginDown { epoch, .. } if epoch == first));
    assert!(plugins.allocate(RESOURCE, first, ids(&["a"])).await.is_err());

    // It comes back under a new epoch.
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    let second = up(&mut events).await;
    assert!(second > first);
    assert_eq!(listed(&mut events, second).await, [("a".into(), false)]);
    assert!(plugins.allocate(RESOURCE, first, ids(&["a"])).await.is_err(), "the old epoch stays over");

    // The kubelet restarts: its directory is cleared, which tells plugins to register again.
    kubelet_task.abort();
    drop(plugins);
    let (plugins, _task, mut events) = kubelet(dir);
    assert!(!dir.join(plugin.endpoint()).exists() && dir.join(KUBELET_SOCKET).exists());
    let keeper = tokio::spawn(plugin.keep_registered());
    let third = up(&mut events).await;
    listed(&mut events, third).await;
    assert!(plugins.allocate(RESOURCE, third, ids(&["a"])).await.is_ok());

    // Somebody removes the kubelet's socket: it is made anew, and the plugin registers there.
    fs::remove_file(dir.join(KUBELET_SOCKET)).unwrap();
    loop {
        if let In::PluginUp { epoch, .. } = next(&mut events).await {
            assert!(epoch > third);
            break;
        }
    }
    keeper.abort();
}

#[tokio::test]
async fn a_plugin_that_lies_or_errs_is_told_from_one_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let (plugins, _task, mut events) = kubelet(dir.path());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, &[("a", true)]);
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    let epoch = up(&mut events).await;
    for (answer, expected) in [
        (Answer::Nothing, Some("0 answers")),
        (Answer::TooMuch, Some("2 answers")),
        (Answer::Error, Some("it is broken")),
        (Answer::Honest, None),
    ] {
        plugin.behave(|b| b.allocate = answer);
        let outcome = plugins.allocate(RESOURCE, epoch, ids(&["a"])).await;
        match expected {
            Some(text) => assert!(outcome.unwrap_err().to_string().contains(text)),
            None => assert!(outcome.is_ok()),
        }
    }
    plugin.behave(|b| b.pre_start_fails = true);
    assert_eq!(plugins.pre_start(RESOURCE, epoch, ids(&["a"])).await, Err(OpError::Failed("not now".into())));
}

/// Time passes at once when nothing else is to be done.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_is_given_up_on() {
    let dir = tempfile::tempdir().unwrap();
    let (plugins, _task, mut events) = kubelet(dir.path());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, &[("a", true)]);
    plugin.serve().unwrap();
    plugin.behave(|b| b.options_hang = true);
    assert!(plugin.register().await.unwrap_err().message().contains("no answer within 10 s"));
    assert!(refused(&mut events).await.1.contains("no answer within 10 s"));
    plugin.behave(|b| (b.options_hang, b.allocate) = (false, Answer::Never));
    plugin.register().await.unwrap();
    let epoch = up(&mut events).await;
    assert_eq!(plugins.allocate(RESOURCE, epoch, ids(&["a"])).await, Err(OpError::TimedOut(120)));
    // Late is not never.
    plugin.behave(|b| (b.allocate, b.allocate_after) = (Answer::Honest, Duration::from_secs(100)));
    assert!(plugins.allocate(RESOURCE, epoch, ids(&["a"])).await.is_ok());
}

#[tokio::test]
async fn an_endless_list_is_one_list() {
    let dir = tempfile::tempdir().unwrap();
    let (_plugins, _task, mut events) = kubelet(dir.path());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, &[("a", true)]);
    plugin.behave(|b| b.endless = true);
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    let epoch = up(&mut events).await;
    listed(&mut events, epoch).await;
    // What changes in it is still seen, and nothing else is told before.
    plugin.list(&[("b", true)]);
    assert_eq!(listed(&mut events, epoch).await, [("b".into(), true)]);
}

#[tokio::test]
async fn what_is_no_plugin_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_plugins, _task, mut events) = kubelet(dir.path());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, &[]);
    plugin.serve().unwrap();
    let own = plugin.endpoint().to_owned();
    for (version, endpoint, resource, message) in [
        ("v1alpha", own.as_str(), RESOURCE, "not supported"),
        (VERSION, &own, "cpu", "invalid"),
        (VERSION, &own, "kubernetes.io/x", "invalid"),
        (VERSION, &own, "a.io/", "invalid"),
        (VERSION, &own, "a.io/b/c", "invalid"),
        (VERSION, &own, "a.io/b c", "invalid"),
        (VERSION, &own, "A.io/b", "invalid"),
        (VERSION, "../kvm.sock", RESOURCE, "no name of a socket"),
        (VERSION, "kubelet.sock", RESOURCE, "no name of a socket"),
        (VERSION, "missing.sock", RESOURCE, "connecting"),
    ] {
        let answer = plugin.register_as(version, endpoint, resource).await.unwrap_err();
        assert!(answer.message().contains(message), "{}", answer.message());
        // The log alone is read by nobody who only sees that his devices are not there.
        let (of, why) = refused(&mut events).await;
        assert!(of == resource && why.contains(message), "{of}: {why}");
    }
    assert!(events.try_recv().is_err());
}

/// What follows when a plugin lists these devices, of which this is told.
async fn after_listing(devices: &[(&str, bool)], expected: &str) -> In {
    let dir = tempfile::tempdir().unwrap();
    let (_plugins, _task, mut events) = kubelet(dir.path());
    let mut plugin = Plugin::new(dir.path(), RESOURCE, devices);
    plugin.serve().unwrap();
    plugin.register().await.unwrap();
    up(&mut events).await;
    let (of, why) = refused(&mut events).await;
    assert!(of == RESOURCE && why.contains(expected), "{of}: {why}");
    next(&mut events).await
}

#[tokio::test]
async fn what_is_left_out_of_a_list_is_told() {
    let long = "d".repeat(MAX_ID + 1);
    match after_listing(&[("a", true), ("", true), (&long, true)], "2 of the 3 devices").await {
        In::PluginDevices { devices, .. } => assert_eq!(devices.len(), 1),
        other => panic!("{other:?}"),
    }
    // A list that no message holds is none.
    let width = MAX_ID;
    let ids: Vec<String> = (0..=MAX_MESSAGE / MAX_ID).map(|n| format!("{n:0>width$}")).collect();
    let devices: Vec<(&str, bool)> = ids.iter().map(|id| (id.as_str(), true)).collect();
    assert!(matches!(after_listing(&devices, "too large").await, In::PluginDown { .. }));
}

/// Announces a plugin, and hears what became of that.
struct Announcer {
    info: carrack_csi::registration::PluginInfo,
    told: mpsc::UnboundedSender<carrack_csi::registration::RegistrationStatus>,
}

#[tonic::async_trait]
impl carrack_csi::registration::registration_server::Registration for Announcer {
    async fn get_info(
        &self,
        _: Request<carrack_csi::registration::InfoRequest>,
    ) -> Result<Response<carrack_csi::registration::PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }
    async fn notify_registration_status(
        &self,
        r: Request<carrack_csi::registration::RegistrationStatus>,
    ) -> Result<Response<carrack_csi::registration::RegistrationStatusResponse>, Status> {
        self.told.send(r.into_inner()).unwrap();
        Ok(Response::new(carrack_csi::registration::RegistrationStatusResponse {}))
    }
}

/// Announces the plugin at an endpoint by a socket. Returns what ends that, and what is heard of it.
fn announce(
    socket: &Path,
    endpoint: &str,
    version: &str,
) -> (tokio::task::AbortHandle, mpsc::UnboundedReceiver<carrack_csi::registration::RegistrationStatus>) {
    use carrack_csi::registration::PluginInfo;
    use carrack_csi::registration::registration_server::RegistrationServer;

    let (told, heard) = mpsc::unbounded_channel();
    let info = PluginInfo {
        r#type: "DevicePlugin".into(),
        name: RESOURCE.into(),
        endpoint: endpoint.into(),
        supported_versions: vec![version.into()],
    };
    let server = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(Announcer { info, told }))
        .serve_with_incoming(UnixListenerStream::new(UnixListener::bind(socket).unwrap()));
    (tokio::spawn(server).abort_handle(), heard)
}

/// A plugin that serves, the directory that it is to be announced in, and its endpoint.
fn unannounced(dir: &Path) -> (Plugin, PathBuf, String) {
    let mut plugin = Plugin::new(dir, RESOURCE, &[("a", true)]);
    plugin.serve().unwrap();
    let registry = dir.join("registry");
    fs::create_dir(&registry).unwrap();
    let endpoint = dir.join(plugin.endpoint()).display().to_string();
    (plugin, registry, endpoint)
}

#[tokio::test]
async fn a_plugin_may_announce_itself_by_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (plugins, _task, mut events) = kubelet(dir.path());
    let (_plugin, registry, endpoint) = unannounced(dir.path());
    let follower = plugins.follow(registry.clone());
    for (version, accepted) in [("v1alpha1", false), (VERSION, true)] {
        let socket = registry.join("kvm-reg.sock");
        let (server, mut heard) = announce(&socket, &endpoint, version);
        let status = tokio::time::timeout(Duration::from_secs(60), heard.recv()).await.expect("in time").unwrap();
        assert_eq!((status.plugin_registered, status.error.is_empty()), (accepted, accepted), "{status:?}");
        if !accepted {
            assert!(refused(&mut events).await.1.contains("not supported"));
        }
        if accepted {
            let epoch = up(&mut events).await;
            assert_eq!(listed(&mut events, epoch).await, [("a".into(), true)]);
            assert!(plugins.allocate(RESOURCE, epoch, ids(&["a"])).await.is_ok());
        }
        // It goes with its socket.
        fs::remove_file(&socket).unwrap();
        if accepted {
            assert!(matches!(next(&mut events).await, In::PluginDown { resource, .. } if resource == RESOURCE));
        }
        server.abort();
    }
    follower.abort();
}

#[tokio::test]
async fn two_that_announce_the_same_do_not_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let (plugins, _task, mut events) = kubelet(dir.path());
    let (_plugin, registry, endpoint) = unannounced(dir.path());
    let mut told = || {
        let mut words = Vec::new();
        while let Ok(event) = events.try_recv() {
            match event {
                In::PluginUp { .. } => words.push("up"),
                In::PluginDown { .. } => words.push("down"),
                _ => {}
            }
        }
        words
    };
    let (mut known, mut announcers) = (BTreeMap::new(), Vec::new());
    // One that is not shown yet is about to be given its name.
    for name in ["a.sock", "b.sock", ".c.sock"] {
        announcers.push(announce(&registry.join(name), &endpoint, VERSION));
        plugins.look(&registry, &mut known).await;
    }
    plugins.look(&registry, &mut known).await;
    assert_eq!(told(), ["up", "up"]);
    // When the last one goes the other has its place.
    fs::remove_file(registry.join("b.sock")).unwrap();
    for _ in 0..3 {
        plugins.look(&registry, &mut known).await;
    }
    assert_eq!(told(), ["down", "up"]);
}

#[test]
fn a_device_is_near_few_nodes() {
    let nodes: Vec<proto::NumaNode> = (0..1000).map(|id| proto::NumaNode { id }).collect();
    let topology = Some(proto::TopologyInfo { nodes });
    let listed = proto::Device { id: "a".into(), health: "Healthy".into(), topology };
    assert_eq!(device(listed).unwrap().numa_nodes.len(), MAX_NODES);
}

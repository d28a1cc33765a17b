//! What must hold, by name and in words.

/// Something that must hold.
#[derive(Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its name.
    pub name: &'static str,
    /// What must hold.
    pub sentence: &'static str,
}

/// All invariants.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "device-held-once",
        sentence: "A device is held by at most one pod that has not ended: in the kubelet's books, in its checkpoint, and by the containers that run.",
    },
    Invariant {
        name: crate::cpus::NAME,
        sentence: "A container that asks for CPUs of its own starts on as many, which are on disk as its own, runs on no others for as long as it runs, and shares them with no other such container.",
    },
    Invariant {
        name: crate::memory::NAME,
        sentence: "A container that is to have memory of NUMA nodes of its own starts bound to nodes that are on disk as its own, and no NUMA node has less than all that are bound to it may use.",
    },
    Invariant {
        name: "one-guest-per-vm",
        sentence: "At most one guest of a virtual machine runs, on all nodes together.",
    },
    Invariant {
        name: "failed-on-proof",
        sentence: "An instance fails for its node's silence only when its guest has stopped for certain, and from a phase in which its node had it.",
    },
    Invariant {
        name: crate::reruns::NAME,
        sentence: "A machine that is to run again after failures alone has no other instance after one whose guest has shut down.",
    },
    Invariant {
        name: crate::fickle::NAME,
        sentence: "A machine that its people have switched off for good stays off, whatever was asked of it before.",
    },
    Invariant {
        name: "success-takes-a-run",
        sentence: "An instance that nobody has deleted succeeds only if its guest has begun.",
    },
    Invariant {
        name: crate::cordons::NAME,
        sentence: "A scheduler that has heard that a node is cordoned sends no pod there that does not tolerate that.",
    },
    Invariant {
        name: "silent-nodes-take-no-machines",
        sentence: "A node whose virt-handler is not heard takes no machines soon after, whether or not it was ever heard.",
    },
    Invariant {
        name: crate::node::HELD_UP,
        sentence: "A machine that is shut down in order goes down when no container runs there, or when the time of its pods is over.",
    },
    Invariant {
        name: crate::node::HEALTHY_HOSTS,
        sentence: "No machine is reset by its watchdog while its virt-handler is there and may pet it.",
    },
    Invariant {
        name: crate::writers::NAME,
        sentence: "Once a run of a machine has opened its disk, no run before it ever opens it, however late it comes.",
    },
    Invariant {
        name: crate::disks::NAME,
        sentence: "Once nothing fails any more, what holds the disks of a launcher that goes ends soon after the launcher itself, however long the pod's grace period is.",
    },
    Invariant {
        name: crate::clones::COPIED_DISKS_REST,
        sentence: "No machine starts while its disks are being copied or filled, and nobody copies from or to a disk that somebody else writes.",
    },
    Invariant {
        name: "machines-leave-silent-nodes",
        sentence: "An instance that may be started elsewhere is over, and its launcher gone unless it has ended and stays with it, soon after its node was last heard, whether or not the node is still known or ever was heard.",
    },
    Invariant {
        name: crate::roaming::DEAD,
        sentence: "Of whom an attachment says that it is dead on its node, no guest runs there.",
    },
    Invariant {
        name: crate::roaming::LEFT,
        sentence: "A disk whose machine is over does not stay attached to a node that was not heard for long.",
    },
    Invariant {
        name: crate::meddler::NAME,
        sentence: "Nobody but KubeVirt's components makes a pod the launcher of an instance, or says what an instance is, whether or not that is to go.",
    },
    Invariant {
        name: crate::onlooker::NAME,
        sentence: "Whoever may only read changes nothing, whatever he sends to which path: he is refused all that is no GET.",
    },
    Invariant {
        name: crate::paces::NAME,
        sentence: "A virt-handler writes the status of an instance at most 31 times, and once more for every two seconds, beside what changes its phase or its metadata.",
    },
    Invariant {
        name: crate::evictions::NAME,
        sentence: "No launcher is evicted whose instance lives and is to be moved rather than ended, since nobody moves guests here.",
    },
    Invariant {
        name: crate::keepers::NAME,
        sentence: "What a machine keeps beside its disks lies on one claim, which is there for as long as the machine is.",
    },
    Invariant {
        name: crate::imports::NAME,
        sentence: "A launcher with a disk that a DataVolume fills is made only when that DataVolume has been said to be done before.",
    },
    Invariant {
        name: crate::heritage::NAME,
        sentence: "An instance comes to belong only to a machine that is there at that moment.",
    },
    Invariant { name: "pod-bound-once", sentence: "A pod that is bound to a node stays bound to that node." },
    Invariant {
        name: crate::zones::NAME,
        sentence: "A pod that comes to a node comes there with the node's zone among its labels.",
    },
    Invariant {
        name: "pod-runs-where-bound",
        sentence: "A pod's sandbox is made only on the node that the pod is bound to.",
    },
    Invariant {
        name: "pod-end-is-final",
        sentence: "A pod that has Succeeded or Failed stays so, and one that was rejected is not told to have run; but for mirrors of static pods, of which others may say so.",
    },
    Invariant {
        name: "plugin-absence-never-fails-a-pod",
        sentence: "A pod that holds devices does not fail because their plugin is not there.",
    },
    Invariant {
        name: "devices-are-of-this-boot",
        sentence: "A container starts with as many devices as it asks for, and its plugin has granted them to it since the node booted.",
    },
    Invariant {
        name: crate::node::WELL,
        sentence: "A kubelet asks a device plugin for no device of which that has said, as far as the kubelet has heard by then, that it is ill or not there.",
    },
    Invariant {
        name: crate::node::TOLD,
        sentence: "Before a container starts with devices of a plugin that is to be told of it, the plugin has been, and has answered well.",
    },
    Invariant {
        name: crate::node::NOTED,
        sentence: "When a kubelet asks a device plugin for devices, the checkpoint that it has written says whose they are.",
    },
    Invariant {
        name: "nodes-are-not-overcommitted",
        sentence: "The pods bound to a node ask for no more of a resource than the node has ever offered.",
    },
    Invariant {
        name: "no-child-made-twice",
        sentence: "A machine has one instance and one DataVolume of its template, an instance has one launcher pod that has not ended and gets it only when every one of the instance before is gone, and a controller that counts its children never makes one too many.",
    },
    Invariant {
        name: "wanted-containers-are-not-killed",
        sentence: "No container that runs is killed while its pod is wanted, nor its pod rejected, whatever agents die or cannot reach.",
    },
    Invariant {
        name: crate::sandboxes::NAME,
        sentence: "A kubelet stops a sandbox only when it has heard of nothing that still runs there and could be stopped: with a sandbox its containers end at once.",
    },
    Invariant {
        name: crate::node::ONCE,
        sentence: "No container of a pod starts beside another one of its name, whatever the runtime did not show.",
    },
    Invariant { name: "volume-in-use-stays", sentence: "No volume is unmounted while a container of its pod runs." },
    Invariant {
        name: "disk-in-use-stays",
        sentence: "No disk is unmounted from its node or detached while a pod has a part of it, whatever the kubelet could not read.",
    },
    Invariant {
        name: "unmounted-on-proof",
        sentence: "A volume is unmounted only when its pod is gone, is to go, or has ended: never because something could not be read.",
    },
    Invariant {
        name: "volumes-go-with-their-pods",
        sentence: "What is mounted for a pod that is gone or to go, and of which nothing runs, is unmounted soon, once nothing fails any more.",
    },
    Invariant {
        name: crate::silence::NAME,
        sentence: "A kubelet that has heard that its runtime cannot be listed does not call its node ready before it has heard otherwise.",
    },
    Invariant {
        name: crate::registered::NAME,
        sentence: "Once nothing fails any more, a node's CSINode names each driver that is registered there soon after, however often it was away.",
    },
    Invariant {
        name: crate::sizes::NAME,
        sentence: "A volume that the nodes' own driver makes for a claim is at least as large as that has asked for, whatever the driver says first.",
    },
    Invariant {
        name: crate::kept_mounts::NAME,
        sentence: "A pod that runs across a restart of its kubelet keeps its mounts: each has the same id, and is of the same device, for as long as its containers run.",
    },
    Invariant {
        name: crate::unwanted::NAME,
        sentence: "What is mounted for a pod that is to go, as its kubelet has heard, and of which nothing runs, is unmounted within 30 seconds, also while nothing can be read about it.",
    },
    Invariant {
        name: crate::unread::NAME,
        sentence: "Once nothing fails any more, a record that a loss of power made unreadable is soon gone or whole again, and its pod known.",
    },
    Invariant {
        name: "known-mounts-are-there",
        sentence: "What a kubelet takes for mounted is mounted, whatever its records say, as long as its pod is wanted.",
    },
    Invariant {
        name: "settings-stay-whole",
        sentence: "The files of a config map are those of one of its versions, all of them, whatever could not be read.",
    },
    Invariant {
        name: "tokens-are-the-pods-own",
        sentence: "A driver that wants tokens gets such as are of the very pod that it is called for and have not expired.",
    },
    Invariant {
        name: "drivers-are-called-again",
        sentence: "Once nothing fails any more, a driver that wants to be called again is, for each of its volumes, within two minutes.",
    },
    Invariant {
        name: "settings-reach-their-files",
        sentence: "What a config map has become is in the volumes of its pods soon, once nothing fails any more.",
    },
    Invariant {
        name: "ends-are-remembered",
        sentence: "How a container ended is forgotten only when there is a newer one of its name, or its pod has ended or is to go.",
    },
    Invariant {
        name: crate::growth::ONE_CALL,
        sentence: "A kubelet never asks a driver two things at once about one volume of its node.",
    },
    Invariant {
        name: crate::growth::TRUE_SIZES,
        sentence: "A claim's status never tells of more than the file system of its volume holds.",
    },
    Invariant {
        name: crate::resizes::FITS,
        sentence: "A node's kubelet never has allocated more to its pods than the node can give.",
    },
    Invariant {
        name: crate::resizes::SETTLES,
        sentence: "Once nothing fails any more, a running pod soon has the size that its spec asks for, in its containers and its group, unless it is told that this does not fit, and that is so.",
    },
    Invariant {
        name: crate::critical::LESS,
        sentence: "A pod that a node cannot do without is not ended there to make room for others.",
    },
    Invariant {
        name: crate::critical::ROOM,
        sentence: "A pod that a node cannot do without is not rejected for want of room that others could have made for it.",
    },
    Invariant {
        name: crate::pressure::PROOF,
        sentence: "A pod is evicted only by what its kubelet was told last of its machine: that there is too little, for as long as that may be, since the pod evicted before has ended.",
    },
    Invariant {
        name: crate::pressure::ONE,
        sentence: "While a pod that is evicted ends no other one on its node is, unless it takes half a minute longer than it may.",
    },
    Invariant {
        name: crate::pressure::CRITICAL,
        sentence: "A pod that a node cannot do without is not evicted, however low the node is.",
    },
    Invariant {
        name: crate::given::NAME,
        sentence: "No pod gets a part of a disk that is attached from outside unless its Node has named the disk attached since the pod is there.",
    },
    Invariant {
        name: crate::images::NAME,
        sentence: "No container is made of a private image for a pod whose secrets cannot pull it, whoever has brought the image to the node.",
    },
    Invariant {
        name: crate::images::NOTED,
        sentence: "A container is made of a private image only when the node's disk says with what that was pulled, or that it is being pulled.",
    },
    Invariant {
        name: crate::pulling::NAME,
        sentence: "A kubelet never pulls more images at a time than its configuration allows.",
    },
    Invariant {
        name: crate::reimaged::NAME,
        sentence: "A pod that is never restarted has not ended when its container is stopped to be given another image.",
    },
    Invariant {
        name: crate::probed::NAME,
        sentence: "A pod whose only container was stopped for a probe does not succeed for that.",
    },
    Invariant {
        name: crate::asked::NAME,
        sentence: "A container with a startup or a readiness probe is told to have started, or to be ready, only once it has passed.",
    },
    Invariant {
        name: crate::gates::KEPT,
        sentence: "What somebody else says of a pod in a condition of its status is neither lost nor changed by what its kubelet writes there.",
    },
    Invariant {
        name: crate::gates::HEEDED,
        sentence: "A pod with readiness gates comes to be ready only in a status in which its containers are and all of its gates are open.",
    },
    Invariant {
        name: crate::debuggers::ONCE,
        sentence: "No ephemeral container of a pod is started once more when it has run.",
    },
    Invariant {
        name: crate::debuggers::TOLD,
        sentence: "An ephemeral container that is told to run is told to until it has ended, and to have ended for as long as its pod is there.",
    },
    Invariant {
        name: crate::ordered::HELD,
        sentence: "A container starts only when the one before it has run for as long as that one's postStart hook takes.",
    },
    Invariant {
        name: crate::ordered::SIGNALS,
        sentence: "A sidecar of a pod that has time to go is told to end only when its preStop hook was run, and with two seconds left at the least.",
    },
    Invariant {
        name: crate::rounds::NAME,
        sentence: "A container that has ended so that all of its pod start again starts again only when none of before runs, and what sets them up has run.",
    },
    Invariant {
        name: crate::links::NAME,
        sentence: "A container with service links has the variables of each service that was there when its kubelet started.",
    },
    Invariant {
        name: crate::env_files::NAME,
        sentence: "A container is made with the variables that an init container has written into a file for it, also where the file cannot be read at first.",
    },
    Invariant {
        name: crate::growth::HEARD,
        sentence: "Once nothing fails any more, a claim that a running pod has mounted soon has what it asks for, and no condition that it is resized.",
    },
    Invariant {
        name: "claimed-data-stays",
        sentence: "The data of a volume is not deleted while a claim is bound to it.",
    },
    Invariant {
        name: "gone-means-stopped",
        sentence: "A pod's object goes only after its containers and its sandbox have stopped on its node.",
    },
    Invariant {
        name: crate::told::NAME,
        sentence: "A pod that ran on a node which lives goes only after the API has heard how it ended, unless somebody deletes it by force.",
    },
    Invariant {
        name: "gone-means-disconnected",
        sentence: "A pod's object goes only after the runtime has acknowledged that its sandboxes gave their addresses back, and no sandbox is forgotten before.",
    },
    Invariant {
        name: "deleted-pods-go",
        sentence: "A pod that is to be deleted and of which nothing is left on its node is gone soon, once nothing fails any more.",
    },
    Invariant {
        name: "rollouts-keep-their-bounds",
        sentence: "A workload never has more pods that count than its size and surge allow, nor fewer available ones than it promises while nothing fails by itself; a template that is to be recreated never runs beside another.",
    },
    Invariant {
        name: "one-pod-for-one-place",
        sentence: "A DaemonSet has one pod on a node that counts, a StatefulSet makes pods in their order, and an index of a Job has one pod that counts.",
    },
    Invariant {
        name: "one-job-for-one-time",
        sentence: "A CronJob makes one Job for one time, and no second one beside another where its policy says so.",
    },
    Invariant {
        name: "one-claim-one-volume",
        sentence: "A bound claim has one volume, which names it by UID, and keeps it; a volume that a claim has goes to no other claim.",
    },
    Invariant {
        name: crate::lost_data::NAME,
        sentence: "A claim whose volume is to be made at a node gets none that this node does not reach, and no pod comes to another node when its volume went with one.",
    },
    Invariant {
        name: "claims-stay-with-their-users",
        sentence: "No claim goes while a pod on a node has it, and none of a StatefulSet's claims is deleted but as its policy says.",
    },
    Invariant {
        name: "one-node-a-disk",
        sentence: "A disk that one node may have has one attachment; a node is told of it only while that stays; and none is taken from a node that uses it.",
    },
    Invariant {
        name: crate::controllers::GONE_KEEP,
        sentence: "What is attached to a node that is gone is taken from it only after six minutes, however often it was gone before.",
    },
    Invariant {
        name: crate::controllers::TOLERATIONS_LAST,
        sentence: "A pod is evicted for a taint only if it does not tolerate it, or when it has been beside it for as long as it does.",
    },
    Invariant { name: "orphans-wait", sentence: "A pod whose node is gone is given up only after the quarantine." },
    Invariant { name: "ends-count-once", sentence: "A Job counts every end of its pods, and each one once." },
    Invariant {
        name: "jobs-hold-their-pods",
        sentence: "A pod that comes to a Job, made or taken over, is held by it until its end is counted.",
    },
    Invariant {
        name: crate::controllers::PASS_HELD,
        sentence: "Once nothing else fails, a Job of which no pod has failed goes on within a minute, though one that has ended may not be let go.",
    },
    Invariant {
        name: "failures-are-handed-on",
        sentence: "A pod of an index with a limit of its own tells of every failure before it, whether it counts or not.",
    },
    Invariant {
        name: "slices-tell-of-ready-pods",
        sentence: "A slice tells of no pod as ready that has never been ready.",
    },
    Invariant {
        name: "evictions-keep-their-budget",
        sentence: "Of the pods that a disruption budget keeps, no more are away by evictions at any time than it allows.",
    },
    Invariant {
        name: "quotas-hold",
        sentence: "A pod is made only where all pods that have not ended and are not to go are no more than the quota allows, as somebody has made or edited it last.",
    },
    Invariant {
        name: crate::controllers::ATTACH_FEW,
        sentence: "A pod comes only to a node that says that it attaches all volumes of a driver that the pods there need, this one's among them, unless those are attached there already.",
    },
    Invariant {
        name: crate::controllers::AUTOSCALED_WITHIN,
        sentence: "No autoscaler asks for fewer or more pods than its bounds allow, as its controller knows them, whatever its metrics say.",
    },
    Invariant {
        name: crate::controllers::SILENCE,
        sentence: "Where an autoscaler is not told what its pods use, it changes their number only to bring it back within its bounds.",
    },
    Invariant {
        name: "owners-go-after-dependents",
        sentence: "An owner that is deleted in the foreground goes only after all dependents that hold it up.",
    },
    Invariant {
        name: "orphans-stay",
        sentence: "What an owner leaves behind has let go of it when it goes, and is not deleted for its sake.",
    },
    Invariant { name: "namespaces-go-empty", sentence: "When a namespace is gone, nothing that was in it is left." },
    Invariant {
        name: "pods-have-their-own-claims",
        sentence: "A claim that was made for a pod is never another pod's, and a pod gets a node only when such claims are its own.",
    },
    Invariant {
        name: "eviction-needs-a-silent-node",
        sentence: "No node's pods are to be evicted unless the node could have been heard for long and was not, while another was: never because the control plane was cut off.",
    },
    Invariant {
        name: "nominations-follow-the-queue",
        sentence: "A pod that is nominated to a node is in the scheduler's queue or in flight, and neither bound nor assumed; with nobody waiting, nobody is nominated.",
    },
    Invariant {
        name: crate::answers::NAME,
        sentence: "A pod waits for its volumes only when all that its scheduler wrote for that, in this attempt, is answered.",
    },
    Invariant {
        name: crate::nominations::NODES,
        sentence: "Once nothing fails any more, nobody is nominated for long to a node that is not there, or that does not take him.",
    },
    Invariant {
        name: crate::closings::NAME,
        sentence: "When an extender has answered, no pod has to go from a node of which the scheduler knows that it takes nobody who waits for that.",
    },
    Invariant {
        name: crate::nominations::NAME,
        sentence: "Once nothing fails any more, no pod says for long that it is to go where its scheduler does not mean it to go; and one that comes to a node says nothing of that any more.",
    },
    Invariant {
        name: "one-filter-a-pop",
        sentence: "An extender is asked to filter once for each time that a pod is popped, of one pod at a time, and never for one that is bound or assumed.",
    },
    Invariant {
        name: "gpus-within-bounds",
        sentence: "No GPU is given out beyond its cores and its memory, and a pod with GPUs is bound only with a choice of them.",
    },
    Invariant {
        name: "gpus-are-held",
        sentence: "Whatever a pod that is bound has of GPUs, an extender that has seen all pods counts as in use on that node, from the binding's commit on.",
    },
    Invariant {
        name: crate::gpu::LEDGER,
        sentence: "The extender of GPUs counts none as in use beyond its cores and its memory, and none that is not there, whatever annotations say.",
    },
    Invariant {
        name: "annotations-hold-nobody-back",
        sentence: "Once nothing fails any more, no pod waits for its GPUs though a node has them, for what its own annotations say.",
    },
    Invariant {
        name: "volumes-leave-a-trace",
        sentence: "What a driver has made is named by a PersistentVolume, or may be asked for by whoever sees the finalizer of the claim that it was made for.",
    },
    Invariant {
        name: "room-is-what-the-api-says",
        sentence: "Once a scheduler has heard of every change of pods and nodes, it counts on each node exactly the pods that are bound there and have not ended, and those of its own whose binding is on its way.",
    },
    Invariant {
        name: "waiting-pods-fit-nowhere",
        sentence: "Once a scheduler has heard of every change, no node takes a pod that it lets wait for an event, by filters asked anew about what the API says, beside what is assumed and nominated.",
    },
    Invariant {
        name: crate::ledger::NAME,
        sentence: "A watch tells each change of its objects once, in the order of the commits, and nothing else, from exactly where it was to begin.",
    },
    Invariant {
        name: "lists-are-newest",
        sentence: "A list, or an object, that is asked for without a revision is as new as all that was committed when it was asked for, whichever API server answers; what was there then, and still is, is found.",
    },
    Invariant {
        name: crate::world::ANSWERED,
        sentence: "An object that an API server shows as written is in its store, at the revision that the answer names.",
    },
    Invariant {
        name: crate::hall::BOUNDED,
        sentence: "An API server serves no more requests at the same time than it has seats.",
    },
    Invariant {
        name: crate::hall::OWN_SEATS,
        sentence: "No request waits while its priority level has fewer seats than are its own: a flood delays neither heartbeats nor elections.",
    },
    Invariant { name: "clones-make-once", sentence: "A clone makes one snapshot and one restore in all its life." },
    Invariant {
        name: "clones-name-their-own",
        sentence: "What a clone's status names as its snapshot or restore was made by it.",
    },
    Invariant {
        name: "clones-forget-what-is-gone",
        sentence: "A clone forgets its snapshot and its restore, and goes itself, only when they are gone.",
    },
    Invariant {
        name: "clones-fail-on-proof",
        sentence: "A clone fails only when the API says why, whatever caches show.",
    },
    Invariant {
        name: "copies-are-whole",
        sentence: "What a snapshot that can be used has copied is what was on the machine's disks.",
    },
    Invariant {
        name: crate::clones::ONE_INSTANT,
        sentence: "All disks of a running machine that a snapshot keeps are as they were at one instant; those that storage takes, too, where the guest can be frozen.",
    },
    Invariant {
        name: crate::backups::AS_KEPT,
        sentence: "A disk that is made from a snapshot of a machine's disk stands for that disk, and has on it what the snapshot has.",
    },
    Invariant {
        name: crate::backups::THAWED,
        sentence: "Once nothing fails any more, no guest stays frozen whose machine no snapshot holds.",
    },
    Invariant {
        name: crate::clones::RESTORED_STATE,
        sentence: "A machine that has become what a snapshot holds has what that holds of its firmware's variables.",
    },
    Invariant {
        name: crate::clones::KEPT_STATE,
        sentence: "A snapshot has what its machine's firmware keeps, whether that was restored a moment ago or not, unless nothing can keep it.",
    },
    Invariant {
        name: crate::clones::CLONED_STATE,
        sentence: "A clone that has succeeded has left out nothing that its source's firmware keeps.",
    },
    Invariant { name: "liveness", sentence: "Once nothing fails any more, the cluster comes to what was asked of it." },
    Invariant {
        name: "roles-do-not-spin",
        sentence: "No role repeats the very same request without end, at most 60 times in ten seconds, and none wakes itself without that time passes.",
    },
    Invariant {
        name: crate::pages::NAME,
        sentence: "A cache that has heard of every change of a kind knows all objects of that kind, in however many pages they were listed.",
    },
    Invariant {
        name: crate::flex::OPENED,
        sentence: "A pod gets its part only of such a FlexVolume as was opened on its node with the secret that the pod itself names.",
    },
    Invariant {
        name: crate::statics::PICTURES,
        sentence: "A container of a static pod whose manifest is there, and was whenever it was looked for, is not stopped, whatever becomes of its mirror; unless the machine is shut down, or the sandbox has died.",
    },
    Invariant {
        name: crate::statics::ONCE,
        sentence: "What a manifest is and what it was before do not run at the same time on its node.",
    },
    Invariant {
        name: crate::statics::MIRRORED,
        sentence: "Once nothing fails any more, each manifest soon has one mirror, of what it is now, that tells what runs, and no mirror is left of one that is gone.",
    },
    Invariant {
        name: crate::forgetful::NAME,
        sentence: "Once nothing fails any more, a server that does not keep a pod's status as it was written is told the same again now and then, and at most twelve times in ten seconds.",
    },
    Invariant {
        name: crate::leaders::NAME,
        sentence: "No write of a controller's and no binding is made once somebody else leads than who sent it.",
    },
    Invariant {
        name: crate::world::ENDS,
        sentence: "What people have in the end of what they asked for is what they would have if nothing had gone wrong; a run with --compare is played without trouble, too.",
    },
    Invariant {
        name: crate::world::PANICS,
        sentence: "Nothing that is played panics: neither a role, nor an API server, nor what looks at them.",
    },
    Invariant {
        name: "roles-do-not-give-up",
        sentence: "No role ends itself, not even when it has lost a leader lease.",
    },
];

//! What happens on a node, and what follows from it.

use carrack_plot::Tone;

use super::{Happening, World};
use crate::hosted::OwnIn;
use crate::invariants::{Breach, holdings};
use crate::node::{Follow, HEALTHY_HOSTS, NodeEvent};
use crate::role::{Role, node_name};

impl World {
    pub(super) fn node(&mut self, number: u8, event: NodeEvent) {
        let now = self.queue.now();
        let booted = matches!(event, NodeEvent::Booted);
        let life = self.life(Role::Kubelet(number)).unwrap_or(0);
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let saves = node.disk.checkpoint.as_ref().map(Vec::len);
        let follow = node.happen(now, life, event, &self.observer, &mut self.breaches);
        if node.disk.checkpoint.as_ref().map(Vec::len) != saves {
            let bytes = node.disk.checkpoint.as_deref().unwrap_or_default();
            if let Ok((allocations, _)) = carrack_kubelet::devices::decode(bytes) {
                holdings(&format!("the checkpoint of node{number}"), &allocations, &mut self.breaches);
            }
        }
        if booted {
            self.turn(node_name(number), "up", Tone::Good, format_args!("node{number} is up again"));
        }
        self.follow(number, follow);
    }

    pub(super) fn follow(&mut self, number: u8, follow: Vec<Follow>) {
        for next in follow {
            match next {
                Follow::Later(delay, event) => self.queue.after(delay, Happening::Node(number, event)),
                Follow::Kubelet(life, delay, news) => {
                    self.queue.after(delay, Happening::News(Role::Kubelet(number), life, OwnIn::Kubelet(news)));
                }
                Follow::Handler(life, delay, news) => {
                    self.queue.after(delay, Happening::News(Role::VirtHandler(number), life, OwnIn::Handler(news)));
                }
                Follow::Storage(life, delay, answer) => {
                    self.queue.after(delay, Happening::News(Role::LocalStorage(number), life, OwnIn::Storage(answer)));
                }
                Follow::Say(text) => self.act(format_args!("{text}")),
                Follow::Down => {
                    self.mark(format_args!("node{number} goes down as it was told to"));
                    self.goes_down(number);
                }
                Follow::Reset => {
                    self.mark(format_args!("the watchdog of node{number} resets it"));
                    let now = self.queue.now();
                    // What has just gone on has not done anything yet.
                    let hangs = self.processes.get(&Role::VirtHandler(number)).is_none_or(|p| p.hang.hung(now));
                    let neglected = self.nodes.get(&number).is_some_and(|n| n.guests.watchdog.was_neglected(now));
                    if neglected && !hangs {
                        let what =
                            format!("node{number} is reset while its virt-handler could have petted its watchdog");
                        self.breaches.push(Breach::new(HEALTHY_HOSTS, what));
                    }
                    self.reboot(number);
                }
            }
        }
    }
}

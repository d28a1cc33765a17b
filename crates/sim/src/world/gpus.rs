//! Between the scheduler and the extender of GPUs.

use std::time::Duration;

use carrack_engine::Time;
use carrack_gpu_extender::{Call, Reply};
use carrack_scheduler::extender::{Answer, Ask};

use super::{Happening, World};
use crate::gpu;
use crate::hosted::{Hosted, OwnIn};
use crate::observer::Change;
use crate::role::Role;

impl World {
    /// The scheduler asks; whoever serves its question has a life of its own.
    pub(super) fn ask_gpus(&mut self, ask: &Ask, scheduler_life: u32) {
        let (Some(verb), Some(life)) = (gpu::verb(&ask.verb), self.life(Role::GpuExtender)) else {
            // Nobody listens: the connection is refused.
            return self.answer_about_gpus(ask.id, scheduler_life, Err("connection refused".into()), Duration::ZERO);
        };
        for after in self.gpus.pass() {
            let call = Call { id: self.gpus.call(ask.id, scheduler_life), verb, body: ask.body.clone() };
            self.queue.after(after, Happening::News(Role::GpuExtender, life, OwnIn::Gpus(Box::new(call))));
        }
    }

    pub(super) fn gpus_answered(&mut self, reply: Reply) {
        let Some((question, scheduler_life)) = self.gpus.question(reply.id) else { return };
        for after in self.gpus.pass() {
            let result =
                if reply.status == 200 { Ok(reply.body.clone()) } else { Err(format!("status {}", reply.status)) };
            self.answer_about_gpus(question, scheduler_life, result, after);
        }
    }

    fn answer_about_gpus(&mut self, id: u64, life: u32, result: Result<bytes::Bytes, String>, after: Duration) {
        let answer = OwnIn::Scheduler(Box::new(Answer { id, result }));
        self.queue.after(after, Happening::News(Role::Scheduler, life, answer));
    }

    /// What was just committed, against what the extender counts.
    pub(super) fn check_gpus(&mut self, changes: &[Change]) {
        if changes.iter().any(|change| change.resource == "pod")
            && let Some(Hosted::Gpus(core, _)) = self.processes.get(&Role::GpuExtender).and_then(|p| p.hosted.as_ref())
        {
            gpu::counted(core, &self.observer, &mut self.breaches);
        }
    }

    /// What the extender's ledger has otherwise than the API.
    pub(super) fn gpus_lack(&self) -> Option<String> {
        if !self.options.gpus {
            return None;
        }
        let pods = self.observer.all("pod").filter(|pod| !gpu::is_outsider(pod) && gpu::shares(pod));
        if let Some(why) = pods.filter_map(|pod| gpu::lacks(pod, &self.observer)).next() {
            return Some(format!("a pod with GPUs {why}"));
        }
        let extender = self.processes.get(&Role::GpuExtender)?;
        match extender.hosted.as_ref() {
            Some(Hosted::Gpus(core, _)) => {
                let its_now = Time(self.queue.now().0 + extender.skew_ns);
                gpu::ledger_lacks(its_now, core.ledger(), &self.observer)
            }
            _ => Some("the extender of GPUs is not there".to_owned()),
        }
    }
}

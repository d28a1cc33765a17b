//! Calls carried out: a driver is a program, and its defaults are upstream's.

use std::path::PathBuf;

use carrack_engine::shell::{Doer, EventSink};
use carrack_flexvolume::{Drivers, Told};

use super::calls::{Answer, Call, Outcome};
use crate::asking::{In, Out};

/// Calls the drivers of a directory.
pub struct Caller {
    drivers: Drivers,
    events: Option<EventSink<In<Outcome>>>,
}

impl Caller {
    /// Those below a directory.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { drivers: Drivers::new(dir), events: None }
    }
}

impl Doer<Out<Call>, In<Outcome>> for Caller {
    fn start(&mut self, events: EventSink<In<Outcome>>) {
        self.events = Some(events);
    }
    fn run(&mut self, Out { id, call }: Out<Call>) {
        let Some(events) = self.events.clone() else { return };
        let drivers = self.drivers.clone();
        tokio::spawn(async move { events.send(In { id, outcome: make(&drivers, call).await }) });
    }
}

/// Makes a call.
pub(super) async fn make(drivers: &Drivers, call: Call) -> Outcome {
    let said = |told: Result<Told, _>| told.map_err(|e: carrack_disks::DiskError| e.to_string());
    match call {
        Call::Init(driver) => drivers.capabilities(&driver).await.map(Answer::Can).map_err(|e| e.to_string()),
        Call::Attach { disk, options, node } => {
            Ok(match said(drivers.call(&disk.driver, "attach", &[options, node]).await)? {
                Told::Answer(answer) => Answer::Attached(answer.device),
                Told::NotSupported => Answer::Attached(String::new()),
            })
        }
        Call::IsAttached { disk, options, node } => {
            Ok(match said(drivers.call(&disk.driver, "isattached", &[options, node]).await)? {
                Told::Answer(answer) => Answer::IsAttached(Some(answer.attached)),
                Told::NotSupported => Answer::IsAttached(None),
            })
        }
        Call::Detach { disk, node } => {
            said(drivers.call(&disk.driver, "detach", &[disk.volume, node]).await)?;
            Ok(Answer::Detached)
        }
        Call::Expand { disk, options, to, from } => {
            // Upstream's controller has no directory of plugins, and this is what is left of the path of the mount.
            let path = format!("{}/mounts/{}", disk.driver, disk.volume);
            let args = [options, path, to.to_string(), from.to_string()];
            said(drivers.call(&disk.driver, "expandvolume", &args).await)?;
            Ok(Answer::Expanded(to))
        }
    }
}

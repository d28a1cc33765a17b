//! FlexVolume drivers: programs, one call a run, an answer in JSON
//! (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-storage/flexvolume.md>).
//!
//! For the kubelet, which mounts, and for the controllers, which attach, detach and enlarge. A call that a driver does not
//! support has a default, which is its caller's to know; it is asked for once, and the answer is remembered for as long as the
//! program is the same.

mod answer;
mod drivers;
mod run;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod volume;

pub use answer::{Answer, Capabilities};
pub use drivers::{Drivers, LIMIT, Told};
pub use run::Until;
pub use volume::Volume;

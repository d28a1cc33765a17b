//! A planted bug: admission of machines that passes over some writes.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup, Needed};
use carrack_virt::admission::VirtAdmission;

/// Checks nothing of the writes of which this is true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blind(pub fn(&Attributes<'_>) -> bool);

impl AdmissionPlugin for Blind {
    fn name(&self) -> &'static str {
        VirtAdmission.name()
    }
    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        VirtAdmission.needs(attributes)
    }
    fn follows(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Needed> {
        VirtAdmission.follows(attributes, lookup)
    }
    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        VirtAdmission.mutate(attributes, lookup)
    }
    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if (self.0)(attributes) { Ok(()) } else { VirtAdmission.validate(attributes, lookup) }
    }
}

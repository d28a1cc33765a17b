//! The two halves of admission, timed: the server's plugins first, then those that users added.

use jiff::Timestamp;

use super::{AdmissionPlugin, Attributes, Found, extend};
use crate::context::Cx;
use crate::metrics::Step;
use crate::status::Status;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The server's plugins complete the object.
    pub completing: bool,
    /// They check it, and look again at what others made of it.
    pub plugins: bool,
    /// Policies and webhooks, which users added.
    pub added: bool,
}

impl Asked {
    /// About an object that is written.
    pub(crate) const ALL: Asked = Asked { completing: true, plugins: true, added: true };
    /// About one that is posted, or goes.
    pub(crate) const CHECKED: Asked = Asked { completing: false, ..Asked::ALL };
    /// About what no plugin knows.
    pub(crate) const ADDED: Asked = Asked { plugins: false, ..Asked::CHECKED };

    /// Those of the server's plugins that are asked.
    pub(super) fn plugins<'a>(self, cx: &Cx<'a>) -> &'a [Box<dyn AdmissionPlugin>] {
        if self.plugins { &cx.server.plugins } else { &[] }
    }
}

/// Has the object completed. What is needed to look at it as it is then is found besides.
pub(crate) async fn admit(
    cx: &Cx<'_>,
    asked: Asked,
    attributes: &mut Attributes<'_>,
    found: &mut Found,
) -> Result<(), Status> {
    let (step, began) = ((Step::Admit, attributes.operation), cx.server.env.now());
    let outcome = admitted(cx, asked, attributes, found, began).await;
    cx.server.metrics.admission.step(step, outcome.is_err(), began, &*cx.server.env);
    outcome
}

async fn admitted(
    cx: &Cx<'_>,
    asked: Asked,
    attributes: &mut Attributes<'_>,
    found: &mut Found,
    began: Timestamp,
) -> Result<(), Status> {
    let mut since = began;
    let completing = if asked.completing { asked.plugins(cx) } else { &[] };
    for (index, plugin) in completing.iter().enumerate() {
        let outcome = plugin.mutate(attributes, found);
        note(cx, index, (Step::Admit, attributes), &mut since, &outcome);
        outcome?;
    }
    if asked.added { extend::mutate(cx, asked.plugins(cx), attributes, found).await } else { Ok(()) }
}

/// Has the completed object checked.
pub(crate) async fn validate(
    cx: &Cx<'_>,
    asked: Asked,
    attributes: &Attributes<'_>,
    found: &Found,
) -> Result<(), Status> {
    let began = cx.server.env.now();
    let outcome = validated(cx, asked, attributes, found, began).await;
    let step = (Step::Validate, attributes.operation);
    cx.server.metrics.admission.step(step, outcome.is_err(), began, &*cx.server.env);
    outcome
}

async fn validated(
    cx: &Cx<'_>,
    asked: Asked,
    attributes: &Attributes<'_>,
    found: &Found,
    began: Timestamp,
) -> Result<(), Status> {
    let mut since = began;
    for (index, plugin) in asked.plugins(cx).iter().enumerate() {
        let outcome = plugin.validate(attributes, found);
        note(cx, index, (Step::Validate, attributes), &mut since, &outcome);
        outcome?;
    }
    if asked.added { extend::validate(cx, attributes).await } else { Ok(()) }
}

/// Notes what a plugin took, which began where the one before ended.
fn note(
    cx: &Cx<'_>,
    index: usize,
    (step, attributes): (Step, &Attributes<'_>),
    since: &mut Timestamp,
    outcome: &Result<(), Status>,
) {
    let now = cx.server.env.now();
    let took = now.duration_since(*since);
    *since = now;
    cx.server.metrics.admission.plugin(index, (step, attributes.operation), outcome.is_err(), took);
}

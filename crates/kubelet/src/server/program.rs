//! What the kubelet's process tells of itself: `/statusz` and `/flagz`, as the other programs do.

use carrack_engine::zpages::statusz::Program;
use carrack_engine::zpages::{Page, PageError, flagz, statusz};
use http::{HeaderMap, StatusCode};

use super::clock;
use super::handle::Replied;
use super::reply::{self, Refusal};
use super::settings::Settings;

/// What it is called in upstream's pages.
const COMPONENT: &str = "kubelet";
/// What else can be read of it.
const PATHS: [&str; 7] = ["/configz", flagz::PATH, "/healthz", "/metrics", "/pods", "/stats/summary", statusz::PATH];

/// Which program this is, and since when it runs.
pub(super) fn status(settings: &Settings, headers: &HeaderMap) -> Replied {
    let program = Program { component: COMPONENT, started: settings.started, paths: &PATHS };
    replied(program.page(clock::now(), headers))
}

/// What it was told on its command line.
pub(super) fn flags(settings: &Settings, headers: &HeaderMap) -> Replied {
    replied(flagz::page(COMPONENT, &settings.flags, headers))
}

fn replied(page: Result<Page, PageError>) -> Replied {
    match page {
        Ok((media_type, text)) => Ok(reply::typed(StatusCode::OK, media_type, text)),
        Err(error) => Err(Refusal::new(error.code(), error.to_string())),
    }
}

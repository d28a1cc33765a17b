//! Timers of the shell: one that is asked for again and again keeps off no other.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::shell::{NoDoer, run_core};
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Core, Effects, EventStream, Input, Never, Time, TimerId, Transport,
};
use futures::future::BoxFuture;

/// Nobody to ask.
struct Nobody;

impl Transport for Nobody {
    fn send(&self, _: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        Box::pin(std::future::ready(Err(ApiError::Transport("nobody".into()))))
    }
    fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        Box::pin(std::future::ready(Err(ApiError::Transport("nobody".into()))))
    }
}

/// Wants to be woken at a time that is past whenever it was, and once a little later.
#[derive(Default)]
struct Restless {
    later: Option<TimerId>,
}

impl Core for Restless {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        match input {
            Input::Start => self.later = Some(fx.timer(now + Duration::from_millis(20))),
            Input::Timer(id) if Some(id) == self.later => return fx.exit("woken"),
            _ => {}
        }
        fx.timer(Time::default());
    }
}

#[tokio::test]
async fn who_wakes_without_end_hears_of_other_timers() {
    let run = run_core(Restless::default(), Arc::new(Nobody), NoDoer, std::future::pending());
    let ended = tokio::time::timeout(Duration::from_secs(30), run).await;
    assert_eq!(ended, Ok(Err("woken".to_owned())));
}

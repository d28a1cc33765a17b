//! Whatever becomes of a request, its core hears of it.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::shell::{NoDoer, run_core};
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Core, Effects, EventStream, Input, Method, Never, Time, Transport, WatchItem,
};
use futures::future::{BoxFuture, lazy};

/// An API server in the same process that cannot bear what it is asked.
struct Breaks;

#[expect(clippy::panic, reason = "that is what is tried")]
impl Transport for Breaks {
    fn send(&self, _: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        Box::pin(lazy(|_| -> Result<ApiResponse, ApiError> { panic!("a request broke") }))
    }
    fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        Box::pin(lazy(|_| -> Result<EventStream, ApiError> { panic!("a watch broke") }))
    }
}

/// Asks for something and watches something, and waits for both.
#[derive(Default)]
struct Waits {
    heard: usize,
}

impl Core for Waits {
    type In = Never;
    type Out = Never;

    fn step(&mut self, _: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        match input {
            Input::Start => {
                fx.api(ApiRequest::new(Method::Get, "/api/v1/pods"));
                fx.watch(ApiRequest::new(Method::Get, "/api/v1/pods?watch=true"));
            }
            Input::Api { result: Err(ApiError::Transport(_)), .. }
            | Input::Watch { item: WatchItem::Closed(Some(ApiError::Transport(_))), .. } => self.heard += 1,
            _ => {}
        }
        if self.heard == 2 {
            fx.exit("both");
        }
    }
}

#[tokio::test]
async fn who_waits_for_what_has_panicked_hears_of_it() {
    let run = run_core(Waits::default(), Arc::new(Breaks), NoDoer, std::future::pending());
    let ended = tokio::time::timeout(Duration::from_secs(30), run).await;
    assert_eq!(ended, Ok(Err("both".to_owned())));
}

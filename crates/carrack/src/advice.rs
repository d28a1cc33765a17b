//! What to do next about errors that are met by whoever has just begun.

use std::io::ErrorKind;

use carrack_engine::ApiError;

/// For whom no API server answers.
const UNREACHED: &str = "is the cluster up, and is it the one that you mean? (carrack up --detach starts one; --kubeconfig or KUBECONFIG names another)";

/// A line for the person, where there is something to say.
pub fn on(error: &anyhow::Error) -> Option<&'static str> {
    let refused = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            || matches!(cause.downcast_ref(), Some(ApiError::Transport(_)))
    };
    error.chain().any(refused).then_some(UNREACHED)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn who_reaches_nobody_is_told_what_to_look_at() {
        let refused = || std::io::Error::from(ErrorKind::ConnectionRefused);
        let check = |error: anyhow::Error, told: bool| assert_eq!(on(&error).is_some(), told, "{error:#}");
        check(anyhow!(refused()).context("cannot reach https://127.0.0.1:6443"), true);
        check(anyhow!(ApiError::Transport("connect".into())).context("cannot list pods"), true);
        check(anyhow!(ApiError::Decode("no JSON".into())).context("cannot list pods"), false);
        check(anyhow!(std::io::Error::from(ErrorKind::NotFound)).context("cannot read kubeconfig.yaml"), false);
    }
}

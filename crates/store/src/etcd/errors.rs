//! What etcd's refusals and silences mean.
//!
//! A read that fails has done nothing. A write that fails may have been done, unless etcd itself says
//! that it refused it: these codes are those that etcd gives before a proposal is made
//! (`go.etcd.io/etcd/api/v3/v3rpc/rpctypes`).

use etcd_client::Error;

use crate::model::StoreError;

/// `google.rpc.Code`, as numbers: the client's own type for them is not part of its interface.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// What was asked of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    Write,
}

/// A failed request.
pub(super) fn failed(asked: Asked, error: &Error) -> StoreError {
    if let Error::GRpcStatus(status) = error {
        let message = status.message().to_owned();
        match i32::from(status.code()) {
            code::INVALID_ARGUMENT => return StoreError::Invalid(message),
            code::PERMISSION_DENIED | code::RESOURCE_EXHAUSTED | code::FAILED_PRECONDITION | code::UNAUTHENTICATED => {
                return StoreError::Refused(message);
            }
            _ => {}
        }
    }
    silent(asked, error.to_string())
}

/// A request that nobody answered.
pub(super) fn silent(asked: Asked, why: String) -> StoreError {
    match asked {
        Asked::Read => StoreError::Unavailable(why),
        Asked::Write => StoreError::Unknown(why),
    }
}

/// Whether etcd says that the revision has been compacted (or, in a watch's place, is none yet).
pub(super) fn is_out_of_range(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if i32::from(status.code()) == code::OUT_OF_RANGE)
}

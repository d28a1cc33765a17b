//! What an evaluation may cost.

/// Bytes that one budget lets evaluations make, all together.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of a text that are made for a unit.
pub(crate) const BYTES_PER_UNIT: u64 = 10;

/// Why an evaluation has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The budget is spent.
    #[error("operation cancelled: actual cost limit exceeded")]
    Exhausted,
    /// A function failed, or a key is missing.
    #[error("{0}")]
    Failed(String),
}

impl EvalError {
    pub(crate) fn new(text: impl Into<String>) -> EvalError {
        EvalError::Failed(text.into())
    }
}

/// What is left to spend, in Kubernetes' units of cost: about one for a step.
#[derive(Debug)]
pub struct Budget {
    left: u64,
    spent: u64,
    bytes_left: u64,
}

impl Budget {
    /// A budget of so many units.
    pub fn new(units: u64) -> Budget {
        Budget { left: units, spent: 0, bytes_left: MAX_BYTES }
    }

    /// What has been spent.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// What is left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Spends.
    ///
    /// # Errors
    /// When that much is not left.
    pub fn spend(&mut self, units: u64) -> Result<(), EvalError> {
        self.spent = self.spent.saturating_add(units);
        match self.left.checked_sub(units) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(EvalError::Exhausted)
            }
        }
    }

    /// So many bytes of text are more than is left, whichever of the two ends first.
    pub(crate) fn too_many_bytes(&self) -> usize {
        let paid_for = self.left.saturating_add(1).saturating_mul(BYTES_PER_UNIT);
        usize::try_from(paid_for.min(self.bytes_left.saturating_add(1))).unwrap_or(usize::MAX)
    }

    /// Counts memory that a value takes.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<(), EvalError> {
        match self.bytes_left.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(EvalError::Exhausted)
            }
        }
    }
}

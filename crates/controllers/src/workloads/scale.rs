//! Amounts that are a number or a percentage.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The amount of a number or percentage of `total`. What is neither counts as nothing; admission refuses it.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let Some(percent) = text.strip_suffix('%').and_then(|p| p.parse::<i64>().ok()) else { return 0 };
            let product = percent.saturating_mul(i64::from(total));
            let whole = if round_up { product.saturating_add(99).div_euclid(100) } else { product.div_euclid(100) };
            i32::try_from(whole).unwrap_or(if whole < 0 { i32::MIN } else { i32::MAX })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_as_asked() {
        for (text, total, down, up) in
            [("25%", 10, 2, 3), ("0%", 10, 0, 0), ("100%", 3, 3, 3), ("50%", 1, 0, 1), ("x", 9, 0, 0)]
        {
            let value = IntOrString::String(text.into());
            assert_eq!((scaled(&value, total, false), scaled(&value, total, true)), (down, up), "{text} of {total}");
        }
        assert_eq!(scaled(&IntOrString::Int(7), 3, true), 7);
    }
}

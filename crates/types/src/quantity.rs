//! Resource quantities, exactly: `100m`, `1.5Gi`, `2e3`.
//!
//! A quantity is a whole number of billionths, as precise as Kubernetes keeps them; what is finer
//! is rounded away from zero, and what is greater than 2^63-1 is that. It remembers in which of the
//! three forms it was written, and is printed in that form, canonically.
//! <https://pkg.go.dev/k8s.io/apimachinery/pkg/api/resource#Quantity>

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

/// Billionths in one.
const NANOS: i128 = 1_000_000_000;
/// The greatest magnitude, in billionths.
const MAX_NANOS: i128 = (i64::MAX as i128) * NANOS;
/// Longer texts than this are no quantities.
const MAX_TEXT: usize = 128;

const DECIMAL_SUFFIXES: [(i32, &str); 10] =
    [(18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "u"), (-9, "n")];
const BINARY_SUFFIXES: [(u32, &str); 6] = [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];

/// How a quantity is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `100m`, `2k`
    #[default]
    DecimalSi,
    /// `128Mi`
    BinarySi,
    /// `2e3`
    DecimalExponent,
}

/// A resource quantity. Two are equal when their amounts are, however they are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

/// A text that is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseQuantityError;

impl fmt::Display for ParseQuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    }
}

impl std::error::Error for ParseQuantityError {}

impl Quantity {
    /// Nothing.
    pub const ZERO: Quantity = Quantity { nanos: 0, form: Form::DecimalSi };

    /// Reads a quantity.
    ///
    /// # Errors
    /// When the text is not one.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        parse(text).ok_or(ParseQuantityError)
    }

    /// A whole number of units.
    #[must_use]
    pub fn from_units(units: i64, form: Form) -> Self {
        Quantity { nanos: i128::from(units) * NANOS, form }
    }

    /// A number of thousandths, such as millicores.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Quantity { nanos: i128::from(millis) * (NANOS / 1000), form: Form::DecimalSi }
    }

    /// The amount in whole units, rounded up.
    #[must_use]
    pub fn units(self) -> i64 {
        saturate(divide_up(self.nanos, NANOS))
    }

    /// The amount in thousandths, rounded up.
    #[must_use]
    pub fn millis(self) -> i64 {
        saturate(divide_up(self.nanos, NANOS / 1000))
    }

    /// The amount in thousandths, what is finer being rounded away from zero, in the form in which it was written.
    #[must_use]
    pub fn rounded_to_millis(self) -> Self {
        let unit = NANOS / 1000;
        let rest = self.nanos % unit;
        Quantity { nanos: self.nanos - rest + unit * rest.signum(), ..self }
    }

    /// The amount in billionths, exactly.
    #[must_use]
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// How it is written.
    #[must_use]
    pub fn form(self) -> Form {
        self.form
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is less than nothing.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it has no fraction.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.nanos % NANOS == 0
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn divide_up(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
}

fn parse(text: &str) -> Option<Quantity> {
    if text.is_empty() || text.len() > MAX_TEXT {
        return None;
    }
    let (negative, body) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (form, factor) = parse_suffix(suffix)?;
    let magnitude = scale(whole, fraction, factor);
    Some(Quantity { nanos: if negative { -magnitude } else { magnitude }, form })
}

/// What one unit of the suffix is: 10 to a power, or 2 to a power.
#[derive(Clone, Copy)]
enum Factor {
    Ten(i32),
    Two(u32),
}

fn parse_suffix(suffix: &str) -> Option<(Form, Factor)> {
    if let Some((power, _)) = DECIMAL_SUFFIXES.into_iter().find(|(_, text)| *text == suffix) {
        return Some((Form::DecimalSi, Factor::Ten(power)));
    }
    if let Some((power, _)) = BINARY_SUFFIXES.into_iter().find(|(_, text)| *text == suffix) {
        return Some((Form::BinarySi, Factor::Two(power)));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    if exponent.len() > 5 {
        return None;
    }
    Some((Form::DecimalExponent, Factor::Ten(exponent.parse().ok()?)))
}

/// `whole.fraction` times the factor, in billionths, rounded up and capped.
fn scale(whole: &str, fraction: &str, factor: Factor) -> i128 {
    // Digits beyond these cannot matter: either the amount is capped or they are rounded away.
    let digits: String = whole.chars().chain(fraction.chars()).collect();
    let trimmed = digits.trim_start_matches('0');
    if trimmed.is_empty() {
        return 0;
    }
    let (ten, two) = match factor {
        Factor::Ten(power) => (power, 0),
        Factor::Two(power) => (0, power),
    };
    // amount = digits * 10^ten10 * 2^two, in billionths
    let ten10 = i64::from(ten) + 9 - i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    if i64::try_from(trimmed.len()).unwrap_or(i64::MAX) + ten10 > 40 {
        return MAX_NANOS;
    }
    const KEPT: usize = 36;
    let (kept, dropped) = trimmed.split_at(trimmed.len().min(KEPT));
    let mut value: i128 = kept.parse().unwrap_or(i128::MAX);
    let mut sticky = dropped.bytes().any(|b| b != b'0');
    let mut power = ten10 + i64::try_from(dropped.len()).unwrap_or(0);
    // The binary factor first where there is room, so that nothing is rounded before it.
    let mut two_left = two;
    while two_left > 0 {
        match value.checked_mul(2) {
            Some(doubled) => {
                value = doubled;
                two_left -= 1;
            }
            None if power < 0 => {
                sticky |= value % 10 != 0;
                value /= 10;
                power += 1;
            }
            None => return MAX_NANOS,
        }
    }
    while power > 0 {
        match value.checked_mul(10) {
            Some(more) if more <= MAX_NANOS => value = more,
            _ => return MAX_NANOS,
        }
        power -= 1;
    }
    while power < 0 && value > 0 {
        sticky |= value % 10 != 0;
        value /= 10;
        power += 1;
    }
    (value + i128::from(sticky)).min(MAX_NANOS)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos / NANOS;
        if self.form == Form::BinarySi && self.is_whole() && whole.unsigned_abs() >= 1024 {
            for (power, suffix) in BINARY_SUFFIXES {
                let unit = 1_i128 << power;
                if whole % unit == 0 {
                    return write!(f, "{}{suffix}", whole / unit);
                }
            }
            return write!(f, "{whole}");
        }
        let (mut mantissa, mut power) = (self.nanos, -9);
        while mantissa % 1000 == 0 && power < 18 {
            mantissa /= 1000;
            power += 3;
        }
        if self.form == Form::DecimalExponent {
            return if power == 0 { write!(f, "{mantissa}") } else { write!(f, "{mantissa}e{power}") };
        }
        let suffix = DECIMAL_SUFFIXES.into_iter().find(|(p, _)| *p == power).map_or("", |(_, text)| text);
        write!(f, "{mantissa}{suffix}")
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Quantity::parse(text)
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        k8s_openapi::apimachinery::pkg::api::resource::Quantity(quantity.to_string())
    }
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = ParseQuantityError;
    fn try_from(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Result<Self, Self::Error> {
        Quantity::parse(&quantity.0)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Keeps the left side's form, unless that is zero; stops at the greatest magnitude.
impl Add for Quantity {
    type Output = Quantity;
    fn add(self, other: Self) -> Self {
        let form = if self.nanos == 0 { other.form } else { self.form };
        Quantity { nanos: (self.nanos + other.nanos).clamp(-MAX_NANOS, MAX_NANOS), form }
    }
}
impl Neg for Quantity {
    type Output = Quantity;
    fn neg(self) -> Self {
        Quantity { nanos: -self.nanos, ..self }
    }
}
impl Sub for Quantity {
    type Output = Quantity;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}
impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Quantity::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_canonically() {
        let table = [
            ("0", "0", 0, 0),
            ("0Mi", "0", 0, 0),
            ("100m", "100m", 1, 100),
            ("0.1", "100m", 1, 100),
            ("1000m", "1", 1, 1000),
            ("1500m", "1500m", 2, 1500),
            ("1000", "1k", 1000, 1_000_000),
            ("1024", "1024", 1024, 1_024_000),
            ("1024Ki", "1Mi", 1 << 20, 1_048_576_000),
            ("1.5Gi", "1536Mi", 3 << 29, 1_610_612_736_000),
            ("1Ki", "1Ki", 1024, 1_024_000),
            ("0.5Ki", "512", 512, 512_000),
            ("0.1Ki", "102400m", 103, 102_400),
            ("2e3", "2e3", 2000, 2_000_000),
            ("2E3", "2e3", 2000, 2_000_000),
            ("2E", "2E", 2_000_000_000_000_000_000, i64::MAX),
            ("12e-1", "1200e-3", 2, 1200),
            ("1n", "1n", 1, 1),
            ("0.1n", "1n", 1, 1),
            ("-0.1n", "-1n", 0, 0),
            ("-5", "-5", -5, -5000),
            ("+5", "5", 5, 5000),
            (".5", "500m", 1, 500),
            ("5.", "5", 5, 5000),
            ("9223372036854775807", "9223372036854775807", i64::MAX, i64::MAX),
            ("99999999999999999999", "9223372036854775807", i64::MAX, i64::MAX),
            ("1e9999", "9223372036854775807", i64::MAX, i64::MAX),
            ("16Ei", "9223372036854775807", i64::MAX, i64::MAX),
        ];
        for (text, printed, units, millis) in table {
            let quantity = Quantity::parse(text).expect(text);
            let form_printed = if printed == "9223372036854775807" { "9223372036854775807" } else { printed };
            let got = quantity.to_string();
            assert_eq!(got.trim_end_matches("e0"), form_printed, "{text}");
            assert_eq!(quantity.units(), units, "{text} in units");
            assert_eq!(quantity.millis(), millis, "{text} in thousandths");
        }
    }

    #[test]
    fn rounds_to_thousandths() {
        for (text, rounded) in [
            ("0", "0"),
            ("100m", "100m"),
            ("0.5m", "1m"),
            ("1n", "1m"),
            ("-1n", "-1m"),
            ("1500001u", "1501m"),
            ("1Gi", "1Gi"),
            ("0.0001Ki", "103m"),
            ("99999999999999999999", "9223372036854775807"),
        ] {
            assert_eq!(Quantity::parse(text).expect(text).rounded_to_millis().to_string(), rounded, "{text}");
        }
    }

    #[test]
    fn refuses() {
        for text in
            ["", "-", "m", "1.2.3", "1 Gi", "1gi", "1KI", "1kk", "0x10", "1e", "1e+", "e3", "abc", "1Gib", "--1", "１"]
        {
            assert_eq!(Quantity::parse(text), Err(ParseQuantityError), "{text:?}");
        }
    }

    #[test]
    fn compares_and_adds_exactly() {
        let q = |text| Quantity::parse(text).expect(text);
        assert_eq!(q("1Gi"), q("1073741824"));
        assert!(q("1G") < q("1Gi"));
        assert_eq!((q("100m") + q("0.9")).to_string(), "1");
        assert_eq!((q("1Gi") - q("512Mi")).to_string(), "512Mi");
        assert_eq!([q("64Mi"), q("64Mi")].into_iter().sum::<Quantity>().to_string(), "128Mi");
    }
}

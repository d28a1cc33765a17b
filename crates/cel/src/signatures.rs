//! The functions that there are: their types and what calls of them cost, as a table.
//!
//! One line a signature: `name(arguments) result cost`; methods have `.` before their name, and their
//! target as first argument. The costs are those of cel-go and of Kubernetes' libraries, in classes.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::types::{ListKind, ListOf, MapOf, Type, UNBOUNDED};

/// What a call costs, by the sizes of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// One, whatever the arguments.
    One,
    /// Reads its first argument.
    First,
    /// Reads all arguments.
    All,
    /// Reads two arguments as far as the shorter one goes.
    Least,
    /// Reads the second once for each element of the first.
    Product,
    /// A regular expression (second) over a text (first).
    Regex,
    /// Looks at each item of the first argument.
    Items,
    /// Looks at each item of the second argument.
    Search,
    /// Compares each item of the first with each one of the second, or with each other one where there is no second.
    Pairs,
    /// Asks the authorizer.
    Ask,
}

/// A tenth of a size, as reading bytes and characters costs.
fn read(size: u64) -> u64 {
    size.div_ceil(10)
}

impl Cost {
    /// The units for arguments of these sizes.
    pub(crate) fn units(self, sizes: &[u64]) -> u64 {
        let size = |index: usize| sizes.get(index).copied().unwrap_or(0);
        match self {
            Cost::One => 1,
            Cost::First => read(size(0)).saturating_add(1),
            Cost::All => sizes.iter().fold(1, |sum: u64, size| sum.saturating_add(read(*size))),
            Cost::Least => read(size(0).min(size(1))).saturating_add(1),
            Cost::Product => read(size(0)).max(1).saturating_mul(read(size(1)).max(1)),
            Cost::Regex => read(size(0) + 1).saturating_mul(size(1).div_ceil(4).max(1)),
            Cost::Items => size(0).saturating_add(1),
            Cost::Search => size(1).saturating_add(1),
            Cost::Pairs => {
                let first = size(0).max(1);
                first.saturating_mul(sizes.get(1).map_or(first, |second| (*second).max(1)))
            }
            Cost::Ask => 350_000,
        }
    }
}

/// A way to call a function.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    pub method: bool,
    pub args: Vec<Type>,
    pub result: Type,
    pub cost: Cost,
}

const TABLE: &str = "
==(A,A) bool Least
!=(A,A) bool Least
<(int,int) bool One
<(int,uint) bool One
<(int,double) bool One
<(uint,int) bool One
<(uint,uint) bool One
<(uint,double) bool One
<(double,int) bool One
<(double,uint) bool One
<(double,double) bool One
<(bool,bool) bool One
<(string,string) bool Least
<(bytes,bytes) bool Least
<(duration,duration) bool One
<(timestamp,timestamp) bool One
in(A,list(A)) bool Search
in(A,map(A,B)) bool One
+(int,int) int One
+(uint,uint) uint One
+(double,double) double One
+(string,string) string All
+(bytes,bytes) bytes All
+(list(A),list(A)) list(A) All
+(duration,duration) duration One
+(timestamp,duration) timestamp One
+(duration,timestamp) timestamp One
-(int,int) int One
-(uint,uint) uint One
-(double,double) double One
-(duration,duration) duration One
-(timestamp,duration) timestamp One
-(timestamp,timestamp) duration One
*(int,int) int One
*(uint,uint) uint One
*(double,double) double One
/(int,int) int One
/(uint,uint) uint One
/(double,double) double One
%(int,int) int One
%(uint,uint) uint One
neg(int) int One
neg(double) double One
!(bool) bool One
size(string) int One
size(bytes) int One
size(list(A)) int One
size(map(A,B)) int One
.size(string) int One
.size(bytes) int One
.size(list(A)) int One
.size(map(A,B)) int One
type(A) type One
dyn(A) dyn One
int(int) int One
int(uint) int One
int(double) int One
int(string) int First
int(timestamp) int One
int(duration) int One
uint(uint) uint One
uint(int) uint One
uint(double) uint One
uint(string) uint First
double(double) double One
double(int) double One
double(uint) double One
double(string) double First
bool(bool) bool One
bool(string) bool One
string(string) string One
string(bool) string One
string(int) string One
string(uint) string One
string(double) string One
string(bytes) string First
string(timestamp) string One
string(duration) string One
string(IP) string One
string(CIDR) string One
bytes(bytes) bytes One
bytes(string) bytes First
duration(string) duration First
duration(duration) duration One
timestamp(string) timestamp First
timestamp(timestamp) timestamp One
timestamp(int) timestamp One
.contains(string,string) bool Product
.startsWith(string,string) bool Least
.endsWith(string,string) bool Least
matches(string,string) bool Regex
.matches(string,string) bool Regex
.charAt(string,int) string First
.indexOf(string,string) int Product
.indexOf(string,string,int) int Product
.lastIndexOf(string,string) int Product
.lastIndexOf(string,string,int) int Product
.join(list(string)) string Items
.join(list(string),string) string Items
.lowerAscii(string) string First
.upperAscii(string) string First
.replace(string,string,string) string All
.replace(string,string,string,int) string All
.split(string,string) list(string) First
.split(string,string,int) list(string) First
.substring(string,int) string First
.substring(string,int,int) string First
.trim(string) string First
.reverse(string) string First
.format(string,list(dyn)) string Pairs
strings.quote(string) string First
.find(string,string) string Regex
.findAll(string,string) list(string) Regex
.findAll(string,string,int) list(string) Regex
.getFullYear(timestamp) int One
.getFullYear(timestamp,string) int One
.getMonth(timestamp) int One
.getMonth(timestamp,string) int One
.getDayOfYear(timestamp) int One
.getDayOfYear(timestamp,string) int One
.getDayOfMonth(timestamp) int One
.getDayOfMonth(timestamp,string) int One
.getDate(timestamp) int One
.getDate(timestamp,string) int One
.getDayOfWeek(timestamp) int One
.getDayOfWeek(timestamp,string) int One
.getHours(timestamp) int One
.getHours(timestamp,string) int One
.getHours(duration) int One
.getMinutes(timestamp) int One
.getMinutes(timestamp,string) int One
.getMinutes(duration) int One
.getSeconds(timestamp) int One
.getSeconds(timestamp,string) int One
.getSeconds(duration) int One
.getMilliseconds(timestamp) int One
.getMilliseconds(timestamp,string) int One
.getMilliseconds(duration) int One
.isSorted(list(int)) bool Items
.isSorted(list(uint)) bool Items
.isSorted(list(double)) bool Items
.isSorted(list(bool)) bool Items
.isSorted(list(duration)) bool Items
.isSorted(list(timestamp)) bool Items
.isSorted(list(string)) bool Items
.isSorted(list(bytes)) bool Items
.sum(list(int)) int Items
.sum(list(uint)) uint Items
.sum(list(double)) double Items
.sum(list(duration)) duration Items
.min(list(int)) int Items
.min(list(uint)) uint Items
.min(list(double)) double Items
.min(list(bool)) bool Items
.min(list(duration)) duration Items
.min(list(timestamp)) timestamp Items
.min(list(string)) string Items
.min(list(bytes)) bytes Items
.max(list(int)) int Items
.max(list(uint)) uint Items
.max(list(double)) double Items
.max(list(bool)) bool Items
.max(list(duration)) duration Items
.max(list(timestamp)) timestamp Items
.max(list(string)) string Items
.max(list(bytes)) bytes Items
.indexOf(list(A),A) int Items
.lastIndexOf(list(A),A) int Items
.slice(list(A),int,int) list(A) Items
.flatten(list(dyn)) list(dyn) Items
.flatten(list(dyn),int) list(dyn) Items
.sort(list(A)) list(A) Items
.distinct(list(A)) list(A) Pairs
.reverse(list(A)) list(A) Items
.first(list(A)) optional(A) One
.last(list(A)) optional(A) One
lists.range(int) list(int) One
sets.contains(list(A),list(A)) bool Pairs
sets.equivalent(list(A),list(A)) bool Pairs
sets.intersects(list(A),list(A)) bool Pairs
math.greatest(dyn) dyn Items
math.greatest(dyn,dyn) dyn One
math.greatest(dyn,dyn,dyn) dyn One
math.greatest(dyn,dyn,dyn,dyn) dyn One
math.least(dyn) dyn Items
math.least(dyn,dyn) dyn One
math.least(dyn,dyn,dyn) dyn One
math.least(dyn,dyn,dyn,dyn) dyn One
math.abs(A) A One
math.sign(A) A One
math.ceil(double) double One
math.floor(double) double One
math.round(double) double One
math.trunc(double) double One
math.isNaN(double) bool One
math.isInf(double) bool One
math.isFinite(double) bool One
base64.encode(bytes) string First
base64.decode(string) bytes First
url(string) URL First
isURL(string) bool First
.getScheme(URL) string First
.getHost(URL) string First
.getHostname(URL) string First
.getPort(URL) string First
.getEscapedPath(URL) string First
.getQuery(URL) map(string,list(string)) First
ip(string) IP First
isIP(string) bool First
ip.isCanonical(string) bool First
.family(IP) int One
.isUnspecified(IP) bool One
.isLoopback(IP) bool One
.isLinkLocalMulticast(IP) bool One
.isLinkLocalUnicast(IP) bool One
.isGlobalUnicast(IP) bool One
cidr(string) CIDR First
isCIDR(string) bool First
.containsIP(CIDR,IP) bool One
.containsIP(CIDR,string) bool One
.containsCIDR(CIDR,CIDR) bool One
.containsCIDR(CIDR,string) bool One
.ip(CIDR) IP One
.masked(CIDR) CIDR One
.prefixLength(CIDR) int One
quantity(string) Quantity First
isQuantity(string) bool First
.sign(Quantity) int One
.add(Quantity,Quantity) Quantity One
.add(Quantity,int) Quantity One
.sub(Quantity,Quantity) Quantity One
.sub(Quantity,int) Quantity One
.isLessThan(Quantity,Quantity) bool One
.isGreaterThan(Quantity,Quantity) bool One
.compareTo(Quantity,Quantity) int One
.isInteger(Quantity) bool One
.asInteger(Quantity) int One
.asApproximateFloat(Quantity) double One
semver(string) Semver First
semver(string,bool) Semver First
isSemver(string) bool First
isSemver(string,bool) bool First
.major(Semver) int One
.minor(Semver) int One
.patch(Semver) int One
.isLessThan(Semver,Semver) bool Least
.isGreaterThan(Semver,Semver) bool Least
.compareTo(Semver,Semver) int Least
format.named(string) optional(Format) One
format.dns1123Label() Format One
format.dns1123Subdomain() Format One
format.dns1035Label() Format One
format.qualifiedName() Format One
format.dns1123LabelPrefix() Format One
format.dns1123SubdomainPrefix() Format One
format.dns1035LabelPrefix() Format One
format.labelValue() Format One
format.uri() Format One
format.uuid() Format One
format.byte() Format One
format.date() Format One
format.datetime() Format One
.validate(Format,string) optional(list(string)) All
optional.of(A) optional(A) One
optional.none() optional(dyn) One
optional.ofNonZeroValue(A) optional(A) One
.hasValue(optional(A)) bool One
.value(optional(A)) A One
.orValue(optional(A),A) A One
.or(optional(A),optional(A)) optional(A) One
optional.unwrap(list(optional(A))) list(A) Items
.unwrapOpt(list(optional(A))) list(A) Items
.path(Authorizer,string) PathCheck One
.check(PathCheck,string) Decision Ask
.group(Authorizer,string) GroupCheck One
.serviceAccount(Authorizer,string,string) Authorizer One
.resource(GroupCheck,string) ResourceCheck One
.subresource(ResourceCheck,string) ResourceCheck One
.namespace(ResourceCheck,string) ResourceCheck One
.name(ResourceCheck,string) ResourceCheck One
.fieldSelector(ResourceCheck,string) ResourceCheck One
.labelSelector(ResourceCheck,string) ResourceCheck One
.check(ResourceCheck,string) Decision Ask
.allowed(Decision) bool One
.reason(Decision) string One
.errored(Decision) bool One
.error(Decision) string One
jsonpatch.escapeKey(string) string First
";

/// All signatures of each function.
static SIGNATURES: LazyLock<BTreeMap<&'static str, Vec<Signature>>> = LazyLock::new(|| {
    let mut all: BTreeMap<&'static str, Vec<Signature>> = BTreeMap::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let method = line.starts_with('.');
        let line = line.trim_start_matches('.');
        let (name, rest) = line.split_once('(').unwrap_or((line, ") dyn One"));
        let end = closing(rest);
        let args = arguments(&rest[..end]);
        let mut tail = rest[end..].trim_start_matches(')').split_whitespace();
        let result = named(tail.next().unwrap_or_default());
        let cost = match tail.next().unwrap_or_default() {
            "First" => Cost::First,
            "All" => Cost::All,
            "Least" => Cost::Least,
            "Product" => Cost::Product,
            "Regex" => Cost::Regex,
            "Items" => Cost::Items,
            "Search" => Cost::Search,
            "Pairs" => Cost::Pairs,
            "Ask" => Cost::Ask,
            _ => Cost::One,
        };
        let signature = Signature { method, args, result, cost };
        // The other comparisons are as the first one.
        let names: &[&str] = if name == "<" { &["<", "<=", ">", ">="] } else { &[name] };
        for name in names {
            all.entry(name).or_default().push(signature.clone());
        }
    }
    all
});

/// The ways to call a function; none when there is no such function.
pub(crate) fn of(function: &str) -> &'static [Signature] {
    SIGNATURES.get(function).map_or(&[], Vec::as_slice)
}

/// Where the parenthesis closes that was open before the text.
fn closing(text: &str) -> usize {
    let mut open = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return at;
        }
    }
    text.len()
}

/// Types between commas that stand outside of parentheses.
fn arguments(text: &'static str) -> Vec<Type> {
    let (mut found, mut open, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => open += 1,
            ')' => open -= 1,
            ',' if open == 0 => {
                found.push(named(&text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < text.len() {
        found.push(named(&text[start..]));
    }
    found
}

fn named(text: &'static str) -> Type {
    let (head, inner) = match text.split_once('(') {
        Some((head, rest)) => (head, arguments(&rest[..closing(rest)])),
        None => (text, Vec::new()),
    };
    let mut inner = inner.into_iter();
    let mut next = || inner.next().unwrap_or(Type::Dyn);
    match head {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String(UNBOUNDED),
        "bytes" => Type::Bytes(UNBOUNDED),
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "type" => Type::Type,
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "list" => Type::List(Arc::new(ListOf { item: next(), max: UNBOUNDED, kind: ListKind::Atomic })),
        "map" => Type::Map(Arc::new(MapOf { key: next(), value: next(), max: UNBOUNDED })),
        "optional" => Type::Optional(Arc::new(next())),
        "dyn" => Type::Dyn,
        name => Type::Opaque(name),
    }
}

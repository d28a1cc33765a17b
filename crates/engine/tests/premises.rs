//! What writes rest on stays with them when plans are put together, and travels as a header.

use carrack_engine::{ApiRequest, Method, Plan, Premise, RESTS_ON, to_http};
use k8s_openapi::api::core::v1::Pod;

#[test]
fn premises_stay_with_their_writes() {
    let pod = Pod::default();
    let (first, second) = (Premise::unchanged(&pod), Premise::same_spec(&pod));
    let one = |premise: &Premise| Plan::none().delete(&pod).resting_on(premise);
    let plan = one(&first).delete(&pod).then(one(&second)).delete(&pod);
    assert_eq!(plan.premises, [(0, first), (2, second)]);
}

#[test]
fn premises_travel_as_a_header() {
    let header = |rests_on: Vec<Premise>| {
        let request = ApiRequest { rests_on, ..ApiRequest::new(Method::Post, "/api/v1/pods") };
        let http = to_http(request, "").unwrap_or_default();
        http.headers().get(RESTS_ON).map(|value| value.as_bytes().to_vec())
    };
    assert_eq!(header(Vec::new()), None);
    let premise = Premise::unchanged(&Pod::default());
    let sent = header(vec![premise.clone()]).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<Vec<Premise>>(&sent).unwrap_or_default(), [premise]);
}

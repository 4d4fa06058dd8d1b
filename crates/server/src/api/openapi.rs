//! The OpenAPI 3.1 document, made from the table of routes and the types that travel.

use hyper::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use twicesafe_ledger::Status;

use super::{Operation, ROUTES, Route};
use crate::wire;

/// The document.
pub(crate) fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    // What may be left out differs between what is taken and what is given.
    let mut generators = Generators {
        taken: settings.clone().into_generator(),
        given: settings.for_serialize().into_generator(),
    };
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(route, &mut generators);
    }
    let mut schemas = generators.taken.take_definitions(true);
    schemas.extend(generators.given.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Twicesafe",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Claim before you act, settle after. The first answer is given to everybody who asks again.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "security": [{}, { "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token: twicesafe token create. Not needed on a loopback address as long as there is none.",
                },
            },
        },
    })
}

struct Generators {
    taken: SchemaGenerator,
    given: SchemaGenerator,
}

fn operation(route: &Route, generators: &mut Generators) -> Value {
    let mut described = json!({
        "operationId": format!("{:?}", route.operation).to_ascii_lowercase(),
        "summary": route.summary,
        "responses": responses(route, &mut generators.given),
    });
    if let Some(right) = route.right {
        described["description"] = json!(format!("Needs the right `{}`.", right.as_str()));
    }
    if let Some(schema) = body(route.operation, &mut generators.taken) {
        described["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    let parameters = parameters(route.operation);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    debug_assert!(route.method == Method::POST || route.method == Method::GET);
    described
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().into()
}

fn body(operation: Operation, generator: &mut SchemaGenerator) -> Option<Value> {
    Some(match operation {
        Operation::Claim => schema::<wire::ClaimRequest>(generator),
        Operation::Renew => schema::<wire::RenewRequest>(generator),
        Operation::Ask => schema::<wire::AskRequest>(generator),
        Operation::Settle => schema::<wire::SettleRequest>(generator),
        Operation::Approve | Operation::Reject => schema::<wire::DecisionRequest>(generator),
        Operation::Reset | Operation::Forget => schema::<wire::ReasonedRequest>(generator),
        Operation::Resolve => schema::<wire::ResolveRequest>(generator),
        Operation::Replay | Operation::Park | Operation::ForgetEvent => {
            schema::<wire::EventRequest>(generator)
        }
        Operation::PauseInbox | Operation::ResumeInbox => schema::<wire::InboxRequest>(generator),
        _ => return None,
    })
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let problem = schema::<wire::ProblemView>(generator);
    let mut responses = json!({
        "default": {
            "description": "A problem, with its code, what happened and what to do. 409, 503 and 507 say when to ask again.",
            "content": { "application/problem+json": { "schema": problem } },
        },
    });
    let mut good = |status: &str, description: &str, media_type: &str, schema: Value| {
        responses[status] =
            json!({ "description": description, "content": { media_type: { "schema": schema } } });
    };
    let json = "application/json";
    match route.operation {
        Operation::Claim => {
            let schema = schema::<wire::ClaimAnswer<'_>>(generator);
            good("201", "Act now, once, and settle.", json, schema.clone());
            good("200", "It is done; this is the first answer.", json, schema);
        }
        Operation::Renew | Operation::Ask => {
            good("200", "The permit.", json, schema::<wire::ClaimAnswer<'_>>(generator));
        }
        Operation::Settle
        | Operation::Approve
        | Operation::Reject
        | Operation::Resolve
        | Operation::Reset
        | Operation::Forget => {
            good("200", "Where the intent stands now.", json, schema::<wire::NotedAnswer>(generator))
        }
        Operation::Intents | Operation::Work | Operation::Approvals | Operation::Review => {
            good("200", "The intents.", json, schema::<wire::PageView>(generator));
        }
        Operation::Intent => good("200", "The intent.", json, schema::<wire::ShownIntent<'_>>(generator)),
        Operation::Stats => good("200", "The figures.", json, json!({ "type": "object" })),
        Operation::Events => {
            good("200", "A stream of events.", "text/event-stream", json!({ "type": "string" }))
        }
        Operation::Inboxes => good("200", "The inboxes.", json, schema::<wire::InboxesView>(generator)),
        Operation::InboxEvent => good("200", "The event.", json, schema::<wire::EventView<'_>>(generator)),
        Operation::Replay | Operation::Park | Operation::ForgetEvent => {
            good("200", "Where the event stands now.", json, json!({ "type": "object" }));
        }
        Operation::PauseInbox | Operation::ResumeInbox => {
            good("200", "Whether it is paused, and why.", json, json!({ "type": "object" }));
        }
    }
    responses
}

fn parameters(operation: Operation) -> Vec<Value> {
    let parameter = |name: &str, description: &str, required: bool, schema: Value| json!({ "name": name, "in": "query", "description": description, "required": required, "schema": schema });
    let text = || json!({ "type": "string" });
    let limited =
        |pattern: &str| json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": pattern });
    let name = || limited(r"^[^\x00-\x1f\x7f-\x9f]+$");
    let whole_scope = || limited("^[A-Za-z0-9._:@+=-]+(/[A-Za-z0-9._:@+=-]+)*$");
    let time = || json!({ "type": "string", "format": "date-time" });
    let scope =
        || parameter("scope", "This scope, or all below it when it ends with a slash.", false, text());
    let paging = || {
        [
            parameter(
                "limit",
                "How many at most.",
                false,
                json!({ "type": "integer", "minimum": 1, "maximum": super::looking::PAGE_MAX, "default": 100 }),
            ),
            parameter(
                "cursor",
                "What `next` said.",
                false,
                json!({ "type": "string", "pattern": "^-?[0-7]?[0-9a-f]{1,15}\\.-?[0-7]?[0-9a-f]{1,15}$" }),
            ),
        ]
    };
    match operation {
        Operation::Intents => {
            let words = Status::ALL.map(Status::as_str);
            let mut all = vec![
                scope(),
                parameter("status", "This status.", false, json!({ "type": "string", "enum": words })),
                parameter("work", "Steps of this work.", false, text()),
                parameter("containing", "This text in the key or in the external id.", false, text()),
                parameter("created_from", "First heard of at or after.", false, time()),
                parameter("created_before", "First heard of before.", false, time()),
            ];
            all.extend(paging());
            all
        }
        Operation::Approvals | Operation::Review => {
            let mut all = vec![scope()];
            all.extend(paging());
            all
        }
        Operation::Intent => vec![
            parameter("scope", "The intent's scope.", true, whole_scope()),
            parameter("key", "Its key.", true, name()),
        ],
        Operation::Work => {
            let mut all = vec![parameter("id", "The unit of work.", true, name())];
            all.extend(paging());
            all
        }
        Operation::Stats => vec![
            parameter("since", "From the hour of that time on; otherwise for 30 days.", false, time()),
            parameter("until", "Up to the hour of that time, which counts in full.", false, time()),
        ],
        Operation::Events => vec![scope()],
        Operation::InboxEvent => vec![
            parameter("inbox", "The inbox.", true, limited("^[A-Za-z0-9][A-Za-z0-9._-]*$")),
            parameter("id", "The event's id.", true, name()),
        ],
        _ => Vec::new(),
    }
}

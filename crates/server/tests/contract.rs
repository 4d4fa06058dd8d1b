//! What is published is what is served.

use std::path::Path;

use serde_json::Value;

/// Compares with a file in `docs/`; with TWICESAFE_UPDATE set, writes it.
fn published(file: &str, now: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    let now = format!("{now:#}\n");
    if std::env::var_os("TWICESAFE_UPDATE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == now,
        "docs/{file} is not what the code says; run the tests with TWICESAFE_UPDATE=1 and read the difference"
    );
}

#[test]
fn the_openapi_document_is_published() {
    published("openapi.json", &twicesafe_server::openapi());
}

#[test]
fn the_schema_of_the_configuration_is_published() {
    published("configuration.schema.json", &twicesafe_server::config::schema());
}

#[test]
fn every_reference_leads_somewhere() {
    let document = twicesafe_server::openapi();
    let mut open = vec![&document];
    let mut references = 0;
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    references += 1;
                    assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
                }
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(references > 20);
}

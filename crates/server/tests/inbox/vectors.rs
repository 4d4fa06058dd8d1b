use super::*;
#[expect(dead_code, reason = "vectors come with their script")]
fn nothing() -> Duration {
    SOON
}

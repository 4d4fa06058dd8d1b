//! Seals: keyed digests of records, so that a record that somebody else changed is not acted on (S49).

use twicesafe_core::{Answer, Approval, Attempt, Body, Receipt, Record, Salt, Timestamp};

use crate::NameHash;
use crate::codec::{self, Policies};
use crate::plan::Stored;
use crate::secret::Keys;

/// A seal.
pub(crate) type Seal = [u8; 16];
/// The digest of a request that is kept.
pub(crate) type RequestDigest = [u8; 32];

/// Writes and reads what is the same in every row: policies, and seals.
pub(crate) struct RowCodec {
    pub(crate) policies: Policies,
    key: [u8; 32],
}

/// About the length of a record in a seal, without its answer.
const RECORD_BYTES: usize = 1024;

impl RowCodec {
    pub(crate) fn new(keys: &Keys) -> Self {
        Self { policies: Policies::default(), key: keys.lasting("twicesafe record seal v1") }
    }

    /// Returns the seal of a record, which is found by that hash of its name.
    pub(crate) fn seal(&self, stored: &Stored, hash: &NameHash) -> Seal {
        let Stored { id: _, version, record, journal_rows, journal_head, hash: _, request, fits_seal: _ } =
            stored;
        let mut text = Text(Vec::with_capacity(RECORD_BYTES));
        text.number(*version);
        text.bytes(hash);
        text.number(i64::from(*journal_rows));
        text.bytes(journal_head);
        text.bytes(request.as_ref().map_or(&[], |request| &request[..]));
        text.record(record, &self.policies);
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&text.0);
        // Last, because it may be large and is not copied. Its length is in the text before it.
        if let Some(Body::Kept(body)) = record.answer.as_ref().map(|answer| &answer.body) {
            hasher.update(body);
        }
        *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// Checks a record against the hash and the seal it was found with.
    #[must_use]
    pub(crate) fn checked(&self, stored: Stored, hash: &NameHash, seal: &[u8]) -> Stored {
        let fits_seal = seal.try_into().is_ok_and(|seal: &Seal| is_equal(seal, &self.seal(&stored, hash)));
        let hash = Some(*hash).filter(|_| stored.record.name.is_none());
        Stored { fits_seal, hash, ..stored }
    }
}

/// Compares in constant time (S41).
fn is_equal(one: &Seal, other: &Seal) -> bool {
    one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Returns the digest of a request. It is salted, so that it says nothing once the salt is forgotten (S40).
pub(crate) fn request_digest(salt: Option<Salt>, request: &[u8]) -> RequestDigest {
    let mut hasher = blake3::Hasher::new_derive_key("twicesafe stored request v1");
    hasher.update(&salt.map_or([0; 16], |salt| salt.0)).update(request);
    hasher.finalize().into()
}

/// What is sealed: each part begins with its length, or has always the same one.
struct Text(Vec<u8>);

impl Text {
    fn number(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as i64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn at(&mut self, at: Option<Timestamp>) {
        self.option(at, |text, at| text.number(at.as_millis()));
    }

    fn receipt(&mut self, receipt: Option<&Receipt>) {
        self.option(receipt, |text, receipt| text.bytes(&codec::receipt_bytes(receipt)));
    }

    /// Puts an answer; a body that is kept is for the caller to put.
    fn answer(&mut self, answer: &Answer) {
        let Answer { external_id, head, body } = answer;
        self.option(external_id.as_ref(), |text, id| text.text(id.as_str()));
        self.text(head);
        match body {
            Body::Kept(body) => self.number(body.len() as i64),
            Body::NotKept { bytes, digest } => {
                self.number(-1);
                self.number(bytes.cast_signed());
                self.bytes(digest);
            }
        }
    }

    fn attempt(&mut self, attempt: &Attempt) {
        let Attempt { kind, claim_id, holder, granted_at, lease_until, send_by } = attempt;
        self.text(codec::permit_word(*kind));
        self.bytes(&claim_id.bytes());
        self.text(holder.as_str());
        [granted_at, lease_until, send_by].into_iter().for_each(|at| self.number(at.as_millis()));
    }

    fn approval(&mut self, approval: &Approval) {
        let Approval { expires_at, approved_by, decision } = approval;
        self.number(expires_at.as_millis());
        self.number(approved_by.len() as i64);
        approved_by.iter().for_each(|by| self.text(by.as_str()));
        self.option(decision.as_ref(), |text, decision| {
            text.flag(decision.approved);
            text.text(decision.by.as_str());
        });
    }

    /// Puts all of a record: a field that is new does not compile until it is here.
    fn record(&mut self, record: &Record, policies: &Policies) {
        let Record {
            name,
            salt,
            generation,
            status,
            doubt,
            fingerprint,
            policy,
            fence,
            tries,
            attempt,
            due_at,
            first_sent_at,
            quiet_at,
            recovered_since,
            ask_until,
            asks,
            kept,
            answer,
            source,
            replay_until,
            approval,
            place,
            waits_until,
            step,
            requested_by,
            created_at,
            settled_at,
            entombed_at,
            last_settle,
            last_evidence,
            last_decision,
        } = record;
        self.option(name.as_ref(), |text, name| {
            text.text(name.scope.as_str());
            text.text(name.key.as_str());
        });
        self.option(salt.as_ref(), |text, salt| text.bytes(&salt.0));
        self.number(i64::from(*generation));
        self.text(status.as_str());
        self.flag(*doubt);
        self.option(fingerprint.as_ref(), |text, fingerprint| {
            text.text(fingerprint.recipe().as_str());
            text.bytes(fingerprint.digest());
        });
        self.text(&policies.text(policy));
        self.number(fence.number().cast_signed());
        self.number(i64::from(*tries));
        self.option(attempt.as_ref(), Self::attempt);
        [due_at, first_sent_at, quiet_at, recovered_since, ask_until].into_iter().for_each(|at| self.at(*at));
        self.number(i64::from(*asks));
        self.option(kept.as_ref(), |text, kept| {
            text.answer(kept);
            text.bytes(kept.bytes().map_or(&[], |body| &body[..]));
        });
        self.option(answer.as_ref(), Self::answer);
        self.option(*source, |text, source| text.text(source.as_str()));
        self.at(*replay_until);
        self.option(approval.as_ref(), Self::approval);
        self.option(place.as_ref(), |text, place| {
            text.text(place.lane.as_str());
            text.option(place.version, Self::number);
        });
        self.at(*waits_until);
        self.option(step.as_ref(), |text, step| {
            text.text(step.work());
            text.text(step.step());
        });
        self.text(requested_by.as_str());
        self.number(created_at.as_millis());
        [settled_at, entombed_at].into_iter().for_each(|at| self.at(*at));
        [last_settle, last_evidence, last_decision].into_iter().for_each(|it| self.receipt(it.as_ref()));
    }
}

/// Seals the lines of an export, one after the other.
pub struct LineSeal(blake3::Hasher);

impl LineSeal {
    /// Adds a line, without its end.
    pub fn add(&mut self, line: &str) {
        self.0.update(line.as_bytes()).update(b"\n");
    }

    /// Returns the seal of the lines so far.
    pub fn text(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }

    /// Whether that is the seal of the lines so far.
    pub fn fits(&self, text: &str) -> bool {
        // Compared in constant time (S41).
        blake3::Hash::from_hex(text).is_ok_and(|seal| seal == self.0.finalize())
    }
}

impl From<&Keys> for LineSeal {
    fn from(keys: &Keys) -> Self {
        Self(blake3::Hasher::new_keyed(&keys.lasting("twicesafe export seal v1")))
    }
}

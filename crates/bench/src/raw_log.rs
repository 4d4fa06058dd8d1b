//! The physical limit: a log that is appended to and synced, and a hash map, behind the same kind of queue and thread.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::harness::{Key, Subject};
use crate::subject::ANSWER_BYTES;

/// What is to be written, and who waits for it.
type Errand = (String, Option<Arc<[u8]>>, oneshot::Sender<()>);
type Known = Arc<RwLock<HashMap<String, Option<Arc<[u8]>>>>>;

#[derive(Clone)]
pub(crate) struct RawLog {
    queue: SyncSender<Errand>,
    known: Known,
    answer: Arc<[u8]>,
}

impl RawLog {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let mut file = File::create(path)?;
        let known = Known::default();
        let (queue, errands) = sync_channel::<Errand>(65_536);
        let its_known = known.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while let Ok(first) = errands.recv() {
                let mut batch = vec![first];
                while batch.len() < 512
                    && let Ok(next) = errands.try_recv()
                {
                    batch.push(next);
                }
                bytes.clear();
                for (key, answer, _) in &batch {
                    bytes.extend_from_slice(key.as_bytes());
                    bytes.extend_from_slice(answer.as_deref().unwrap_or_default());
                }
                if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
                    return;
                }
                let mut known = its_known.write().unwrap_or_else(std::sync::PoisonError::into_inner);
                for (key, answer, reply) in batch {
                    known.insert(key, answer);
                    let _ = reply.send(());
                }
            }
        });
        Ok(Self { queue, known, answer: vec![b'r'; ANSWER_BYTES].into() })
    }

    async fn append(
        &self,
        key: &str,
        answer: Option<Arc<[u8]>>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (reply, done) = oneshot::channel();
        self.queue.try_send((key.to_owned(), answer, reply)).map_err(|_| "the log's queue is full")?;
        Ok(done.await?)
    }
}

impl Subject for RawLog {
    async fn effect(
        &self,
        key: Key,
        took: &mut Vec<Duration>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let key = key.text();
        let started = Instant::now();
        let known = self.known.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&key).cloned();
        if let Some(answer) = known {
            assert!(
                answer.is_some_and(|answer| answer.len() == ANSWER_BYTES),
                "a repeated key has its answer"
            );
            took.push(started.elapsed());
            return Ok(());
        }
        self.append(&key, None).await?;
        took.push(started.elapsed());
        let started = Instant::now();
        self.append(&key, Some(self.answer.clone())).await?;
        took.push(started.elapsed());
        Ok(())
    }
}

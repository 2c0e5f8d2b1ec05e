//! The check a first start owes: does put-if-absent have exactly one winner?
//!
//! # Purpose
//! All of Telesto's safety rests on put-if-absent. Some stores ignore the condition, some let two
//! racing writers win; [`probe_conditional_put`] races a few and refuses such a store.
//!
//! # Limits
//! A probe can only convict: a store that passes may still be wrong once in a thousand races.

use bytes::Bytes;
use futures::future::join_all;
use telesto_common::Env;

use crate::api::{Bucket, Cause, PutOutcome};
use crate::error::{Error, Result};

const ROUNDS: usize = 3;
const RACERS: usize = 8;

/// Races conditional puts in `bucket` and looks who won. About 30 requests.
///
/// # Errors
/// [`Error::NoConditionalPut`] when a race has other than one winner, or the winner's object is not
/// the one that stays; otherwise what the requests themselves fail with.
pub async fn probe_conditional_put(bucket: &dyn Bucket, env: &Env) -> Result<()> {
    let refuse = |reason: String| Error::NoConditionalPut { url: bucket.url().to_owned(), reason };
    for _ in 0..ROUNDS {
        let key = format!("probe/{:032x}", env.random_u128());
        let bodies: Vec<Bytes> = (0..RACERS)
            .map(|racer| Bytes::from(format!("probe {racer} {:032x}", env.random_u128())))
            .collect();
        let puts = bodies.iter().map(|body| bucket.put_if_absent(Cause::Admin, &key, body.clone()));
        let mut winners = Vec::new();
        for (racer, outcome) in join_all(puts).await.into_iter().enumerate() {
            if outcome? == PutOutcome::Created {
                winners.push(racer);
            }
        }
        let late = Bytes::from(format!("probe late {:032x}", env.random_u128()));
        if bucket.put_if_absent(Cause::Admin, &key, late).await? == PutOutcome::Created {
            return Err(refuse("an object that exists was overwritten".to_owned()));
        }
        let object = bucket.get(Cause::Admin, &key, None).await?;
        let verdict = match (&winners[..], object) {
            ([winner], Some(object)) if object.body == bodies[*winner] => Ok(()),
            ([_], Some(_)) => Err(refuse("the object is not the winner's".to_owned())),
            (_, None) => Err(refuse("an object just written is not there".to_owned())),
            (winners, Some(_)) => Err(refuse(format!(
                "{} of {RACERS} racing writers were told they had won",
                winners.len()
            ))),
        };
        bucket.delete(Cause::Admin, &key).await?;
        verdict?;
    }
    Ok(())
}

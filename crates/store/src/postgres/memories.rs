//! Memories in PostgreSQL: their words in its own full-text search, their meanings compared one by one.

use std::collections::HashMap;

use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _};
use uuid::Uuid;

use super::rows::{moment, text};
use crate::StoreError;
use crate::memory::{
    MOST_COMPARED, Memory, MemoryChange, MemoryQuery, by_nearness, fused, owner_and_project,
    project_key, vector_bytes, words_of,
};

/// Of the project `$1` and of whom `$2` stands for, where they are given.
const WANTED: &str = "($1::text IS NULL OR substr(project, strpos(project, '/') + 1) = $1) \
     AND ($2::text IS NULL OR substr(project, 1, strpos(project, '/')) = $2)";

pub(super) async fn change(
    connection: &mut PgConnection,
    change: &MemoryChange,
    now: Timestamp,
) -> Result<Option<Memory>, StoreError> {
    let query = match change {
        MemoryChange::Add(new) => sqlx::query(
            "INSERT INTO memories (project, text, job_id, at, vector) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING RETURNING id, project, text, job_id, at",
        )
        .bind(text(&project_key(new.owner.as_deref(), &new.project)))
        .bind(text(&new.text))
        .bind(new.job.map(JobId::uuid))
        .bind(now.as_microsecond())
        .bind(new.vector.as_deref().map(vector_bytes)),
        // A text that is kept already under another number is one memory then.
        MemoryChange::Edit { id, text: new, vector } => {
            sqlx::query(
                "DELETE FROM memories WHERE md5(text) = md5($2) AND id <> $1 \
                 AND project = (SELECT project FROM memories WHERE id = $1)",
            )
            .bind(id)
            .bind(text(new))
            .execute(&mut *connection)
            .await?;
            sqlx::query(
                "UPDATE memories SET text = $2, at = $3, vector = $4 WHERE id = $1 \
                 RETURNING id, project, text, job_id, at",
            )
            .bind(id)
            .bind(text(new))
            .bind(now.as_microsecond())
            .bind(vector.as_deref().map(vector_bytes))
        }
        MemoryChange::Delete { id } => sqlx::query(
            "DELETE FROM memories WHERE id = $1 RETURNING id, project, text, job_id, at",
        )
        .bind(id),
    };
    let row = query.fetch_optional(connection).await?;
    row.as_ref().map(memory).transpose()
}

pub(super) async fn find(readers: &PgPool, query: &MemoryQuery) -> Result<Vec<Memory>, StoreError> {
    let words = query.words.as_deref();
    if words.is_none() && query.vector.is_none() {
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT id, project, text, job_id, at FROM memories WHERE {WANTED} \
             ORDER BY id DESC LIMIT $3"
        )))
        .bind(query.project.as_deref().map(text))
        .bind(query.whose.prefix())
        .bind(i64::from(query.limit))
        .fetch_all(readers)
        .await?;
        return rows.iter().map(memory).collect();
    }
    let by_words = match words.map(words_of) {
        Some(words) if !words.is_empty() => by_words(readers, query, &words).await?,
        _ => Vec::new(),
    };
    let by_meaning = match &query.vector {
        Some(vector) => by_meaning(readers, query, vector).await?,
        None => Vec::new(),
    };
    let mut ids = fused(&by_words, &by_meaning);
    ids.truncate(query.limit as usize);
    let rows = sqlx::query("SELECT id, project, text, job_id, at FROM memories WHERE id = ANY($1)")
        .bind(&ids)
        .fetch_all(readers)
        .await?;
    let found = rows.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
    let mut found: HashMap<i64, Memory> =
        found.into_iter().map(|memory| (memory.id, memory)).collect();
    Ok(ids.into_iter().filter_map(|id| found.remove(&id)).collect())
}

pub(super) async fn one(readers: &PgPool, id: i64) -> Result<Option<Memory>, StoreError> {
    let row = sqlx::query("SELECT id, project, text, job_id, at FROM memories WHERE id = $1")
        .bind(id)
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(memory).transpose()
}

async fn by_words(
    readers: &PgPool,
    query: &MemoryQuery,
    words: &[&str],
) -> Result<Vec<i64>, StoreError> {
    // Each word becomes a query of its own, which none of its letters can change.
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT id FROM memories, \
         (SELECT string_agg(part::text, ' | ')::tsquery AS wanted \
          FROM (SELECT plainto_tsquery(config, word) AS part FROM unnest($3::text[]) AS word, \
          unnest(ARRAY['english', 'simple']::regconfig[]) AS config) AS parts WHERE numnode(part) > 0) AS search \
         WHERE words @@ wanted AND {WANTED} \
         ORDER BY ts_rank_cd(words, wanted) DESC, id DESC LIMIT $4"
    )))
    .bind(query.project.as_deref().map(text))
    .bind(query.whose.prefix())
    .bind(words)
    .bind(i64::from(query.limit).saturating_mul(4))
    .fetch_all(readers)
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

async fn by_meaning(
    readers: &PgPool,
    query: &MemoryQuery,
    vector: &[f32],
) -> Result<Vec<i64>, StoreError> {
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT id, vector FROM memories WHERE vector IS NOT NULL AND {WANTED} \
         ORDER BY id DESC LIMIT $3"
    )))
    .bind(query.project.as_deref().map(text))
    .bind(query.whose.prefix())
    .bind(i64::from(MOST_COMPARED))
    .fetch_all(readers)
    .await?;
    let kept = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let kept: Vec<(i64, Vec<u8>)> = kept.collect::<Result<_, sqlx::Error>>()?;
    Ok(by_nearness(vector, &kept, query.limit))
}

fn memory(row: &PgRow) -> Result<Memory, StoreError> {
    let (owner, project) = owner_and_project(row.try_get(1)?);
    Ok(Memory {
        id: row.try_get(0)?,
        owner,
        project,
        text: row.try_get(2)?,
        job: row.try_get::<Option<Uuid>, _>(3)?.map(JobId::from),
        at: moment(row.try_get(4)?)?,
    })
}

//! Memories in SQLite: their words in FTS5, their meanings compared one by one.

use std::collections::HashMap;

use bellglass_protocol::id::JobId;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection, SqlitePool};

use crate::StoreError;
use crate::memory::{
    MOST_COMPARED, Memory, MemoryChange, MemoryQuery, any_of, by_nearness, fused,
    owner_and_project, project_key, vector_bytes,
};

const COLUMNS: &str = "id, project, text, job_id, at";

/// Of the project `$1` and of whom `$2` stands for, where they are given.
const WANTED: &str = "($1 IS NULL OR substr(project, instr(project, '/') + 1) = $1)
     AND ($2 IS NULL OR substr(project, 1, instr(project, '/')) = $2)";

pub(super) async fn change(
    connection: &mut SqliteConnection,
    change: &MemoryChange,
    now: Timestamp,
) -> Result<Option<Memory>, StoreError> {
    let query = match change {
        MemoryChange::Add(new) => sqlx::query(
            "INSERT INTO memories (project, text, job_id, at, vector) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT DO NOTHING RETURNING id, project, text, job_id, at",
        )
        .bind(project_key(new.owner.as_deref(), &new.project))
        .bind(&new.text)
        .bind(new.job.map(|job| job.to_string()))
        .bind(now.as_microsecond())
        .bind(new.vector.as_deref().map(vector_bytes)),
        // A text that is kept already under another number is one memory then.
        MemoryChange::Edit { id, text, vector } => {
            sqlx::query(
                "DELETE FROM memories WHERE text = $2 AND id <> $1
                 AND project = (SELECT project FROM memories WHERE id = $1)",
            )
            .bind(id)
            .bind(text)
            .execute(&mut *connection)
            .await?;
            sqlx::query(
                "UPDATE memories SET text = $2, at = $3, vector = $4 WHERE id = $1
                 RETURNING id, project, text, job_id, at",
            )
            .bind(id)
            .bind(text)
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

pub(super) async fn find(
    readers: &SqlitePool,
    query: &MemoryQuery,
) -> Result<Vec<Memory>, StoreError> {
    let words = query.words.as_deref();
    if words.is_none() && query.vector.is_none() {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM memories WHERE {WANTED} ORDER BY id DESC LIMIT $3"
        )))
        .bind(&query.project)
        .bind(query.whose.prefix())
        .bind(query.limit)
        .fetch_all(readers)
        .await?;
        return rows.iter().map(memory).collect();
    }
    let by_words = match words.and_then(any_of) {
        Some(words) => by_words(readers, query, &words).await?,
        None => Vec::new(),
    };
    let by_meaning = match &query.vector {
        Some(vector) => by_meaning(readers, query, vector).await?,
        None => Vec::new(),
    };
    let mut ids = fused(&by_words, &by_meaning);
    ids.truncate(query.limit as usize);
    let list = serde_json::to_string(&ids).unwrap_or_default();
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM memories WHERE id IN (SELECT value FROM json_each($1))"
    )))
    .bind(list)
    .fetch_all(readers)
    .await?;
    let found = rows.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
    let mut found: HashMap<i64, Memory> =
        found.into_iter().map(|memory| (memory.id, memory)).collect();
    Ok(ids.into_iter().filter_map(|id| found.remove(&id)).collect())
}

pub(super) async fn one(readers: &SqlitePool, id: i64) -> Result<Option<Memory>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM memories WHERE id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).fetch_optional(readers).await?;
    row.as_ref().map(memory).transpose()
}

async fn by_words(
    readers: &SqlitePool,
    query: &MemoryQuery,
    words: &str,
) -> Result<Vec<i64>, StoreError> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "SELECT memories.id FROM memory_words JOIN memories ON memories.id = memory_words.rowid
         WHERE memory_words MATCH $3 AND {WANTED}
         ORDER BY bm25(memory_words), memories.id DESC LIMIT $4"
    )))
    .bind(&query.project)
    .bind(query.whose.prefix())
    .bind(words)
    .bind(query.limit.saturating_mul(4))
    .fetch_all(readers)
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

async fn by_meaning(
    readers: &SqlitePool,
    query: &MemoryQuery,
    vector: &[f32],
) -> Result<Vec<i64>, StoreError> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "SELECT id, vector FROM memories
         WHERE vector IS NOT NULL AND {WANTED} ORDER BY id DESC LIMIT $3"
    )))
    .bind(&query.project)
    .bind(query.whose.prefix())
    .bind(MOST_COMPARED)
    .fetch_all(readers)
    .await?;
    let kept = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let kept: Vec<(i64, Vec<u8>)> = kept.collect::<Result<_, sqlx::Error>>()?;
    Ok(by_nearness(vector, &kept, query.limit))
}

fn memory(row: &SqliteRow) -> Result<Memory, StoreError> {
    let job: Option<String> = row.try_get("job_id")?;
    let at: i64 = row.try_get("at")?;
    let (owner, project) = owner_and_project(row.try_get("project")?);
    Ok(Memory {
        id: row.try_get("id")?,
        owner,
        project,
        text: row.try_get("text")?,
        job: job.and_then(|job| job.parse::<JobId>().ok()),
        at: Timestamp::from_microsecond(at).unwrap_or_default(),
    })
}

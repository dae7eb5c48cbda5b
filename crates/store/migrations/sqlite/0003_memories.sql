-- What tasks learnt that is worth knowing in later ones of the same project.
CREATE TABLE memories (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    project TEXT    NOT NULL,
    text    TEXT    NOT NULL,
    -- The job that left it; none if somebody wrote it by hand.
    job_id  TEXT,
    at      INTEGER NOT NULL,
    -- Where the text lies for those who look by meaning: numbers of four bytes, little end first.
    vector  BLOB,
    UNIQUE (project, text)
);

-- Words are found whatever their ending is in English, and whatever their accents are.
CREATE VIRTUAL TABLE memory_words USING fts5 (
    text, content = 'memories', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
);

CREATE TRIGGER memories_added AFTER INSERT ON memories BEGIN
    INSERT INTO memory_words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER memories_removed AFTER DELETE ON memories BEGIN
    INSERT INTO memory_words (memory_words, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TRIGGER memories_changed AFTER UPDATE OF text ON memories BEGIN
    INSERT INTO memory_words (memory_words, rowid, text) VALUES ('delete', old.id, old.text);
    INSERT INTO memory_words (rowid, text) VALUES (new.id, new.text);
END;

package verify

import (
	"container/list"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

type row struct {
	key      string
	position int64
	token    string
	until    time.Time
}

type memoryStore struct {
	mutex sync.Mutex
	max   int
	// rows have the one that was claimed last at the end.
	rows  *list.List
	byKey map[string]*list.Element
}

// MemoryStore is a store for one process. It forgets the oldest keys beyond max (0 is 10,000), and everything when the process ends.
func MemoryStore(max int) Store {
	if max == 0 {
		max = 10_000
	}
	return &memoryStore{max: max, rows: list.New(), byKey: map[string]*list.Element{}}
}

func (m *memoryStore) Claim(_ context.Context, key string, position int64, token string, lease time.Duration) (bool, int64, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	now := time.Now()
	element := m.byKey[key]
	if element == nil {
		element = m.rows.PushBack(&row{key: key})
		m.byKey[key] = element
	}
	known := element.Value.(*row)
	if known.position >= position || (known.token != "" && known.until.After(now)) {
		return false, known.position, nil
	}
	known.token, known.until = token, now.Add(lease)
	m.rows.MoveToBack(element)
	m.forget(now)
	return true, 0, nil
}

func (m *memoryStore) forget(now time.Time) {
	var next *list.Element
	for element := m.rows.Front(); element != nil && m.rows.Len() > m.max; element = next {
		next = element.Next()
		if each := element.Value.(*row); each.token == "" || !each.until.After(now) {
			m.rows.Remove(element)
			delete(m.byKey, each.key)
		}
	}
}

// claimed returns the row of a claim, or nil if it has expired and another one was made.
func (m *memoryStore) claimed(key, token string) *row {
	if element := m.byKey[key]; element != nil {
		if known := element.Value.(*row); known.token == token {
			return known
		}
	}
	return nil
}

func (m *memoryStore) Complete(_ context.Context, key string, position int64, token string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if known := m.claimed(key, token); known != nil {
		known.position, known.token = position, ""
	}
	return nil
}

func (m *memoryStore) Release(_ context.Context, key string, token string) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if known := m.claimed(key, token); known != nil {
		known.token = ""
	}
	return nil
}

// Database is a *sql.DB, *sql.Conn or *sql.Tx. With your open transaction, the delivery is recorded if the transaction commits.
type Database interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

type sqlStore struct {
	database Database
	claim    string
	read     string
	complete string
	release  string
}

// PostgresStore is a store in PostgreSQL, by any driver of database/sql. An empty table is nuncio_handled. It panics if the table is
// no name.
//
//	create table nuncio_handled (
//	  key text primary key, position bigint not null, token text, until timestamptz not null
//	)
func PostgresStore(database Database, table string) Store {
	now := "clock_timestamp()"
	return newSQLStore(database, table, now, now+" + $3::float8 * interval '1 millisecond'")
}

// SQLiteStore is a store in SQLite 3.35 or later, by any driver of database/sql. An empty table is nuncio_handled. It panics if the
// table is no name.
//
//	create table nuncio_handled (
//	  key text primary key, position integer not null, token text, until integer not null
//	)
func SQLiteStore(database Database, table string) Store {
	now := "cast((julianday('now') - 2440587.5) * 86400000 as integer)"
	return newSQLStore(database, table, now, now+" + $3")
}

var tableForm = regexp.MustCompile(`^[A-Za-z0-9_]{1,50}(\.[A-Za-z0-9_]{1,50})?$`)

func newSQLStore(database Database, table, now, later string) Store {
	if table == "" {
		table = "nuncio_handled"
	}
	if !tableForm.MatchString(table) {
		panic("table must be a name, or a schema and a name")
	}
	named := func(text string) string { return strings.ReplaceAll(text, "TABLE", table) }
	return &sqlStore{
		database: database,
		claim: named(fmt.Sprintf(`insert into TABLE as handled (key, position, token, until) values ($1, 0, $2, %s)
			on conflict (key) do update set token = excluded.token, until = excluded.until
			where handled.position < $4 and (handled.token is null or handled.until <= %s) returning 1`, later, now)),
		read:     named("select position from TABLE where key = $1"),
		complete: named("update TABLE set position = $1, token = null where key = $2 and token = $3 returning 1"),
		release:  named("update TABLE set token = null where key = $1 and token = $2 returning 1"),
	}
}

// first returns the first column of the first row, if there is a row.
func (s *sqlStore) first(ctx context.Context, text string, values ...any) (value int64, exists bool, err error) {
	rows, err := s.database.QueryContext(ctx, text, values...)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	if exists = rows.Next(); exists {
		if err := rows.Scan(&value); err != nil {
			return 0, false, err
		}
		// Drivers finish a statement when its rows were read.
		for rows.Next() {
		}
	}
	return value, exists, rows.Err()
}

func (s *sqlStore) Claim(ctx context.Context, key string, position int64, token string, lease time.Duration) (bool, int64, error) {
	_, isClaimed, err := s.first(ctx, s.claim, key, token, lease.Milliseconds(), position)
	if err != nil || isClaimed {
		return isClaimed, 0, err
	}
	// A row that was deleted since was not handled.
	handled, _, err := s.first(ctx, s.read, key)
	return false, handled, err
}

func (s *sqlStore) Complete(ctx context.Context, key string, position int64, token string) error {
	_, _, err := s.first(ctx, s.complete, position, key, token)
	return err
}

func (s *sqlStore) Release(ctx context.Context, key string, token string) error {
	_, _, err := s.first(ctx, s.release, key, token)
	return err
}

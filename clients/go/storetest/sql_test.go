// Package storetest tests the SQL stores. PostgreSQL needs DATABASE_URL, a database where tables can be created.
package storetest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"nuncio.example/verify"
	"nuncio.example/verify/storecheck"
)

func open(t *testing.T, driver, name, table string) *sql.DB {
	database, err := sql.Open(driver, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Close() })
	if _, err := database.Exec(table); err != nil {
		t.Fatal(err)
	}
	return database
}

func openSQLite(t *testing.T) *sql.DB {
	name := "file:" + filepath.Join(t.TempDir(), "app.sqlite") + "?_pragma=busy_timeout(30000)"
	return open(t, "sqlite", name,
		"create table nuncio_handled (key text primary key, position integer not null, token text, until integer not null)")
}

func TestSQLite(t *testing.T) {
	storecheck.Run(t, func(t *testing.T) verify.Store { return verify.SQLiteStore(openSQLite(t), "") })
}

func TestPostgres(t *testing.T) {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		t.Skip("no DATABASE_URL")
	}
	storecheck.Run(t, func(t *testing.T) verify.Store {
		table := fmt.Sprintf("public.handled_%d", time.Now().UnixNano())
		return verify.PostgresStore(open(t, "pgx", url, "create table "+table+
			" (key text primary key, position bigint not null, token text, until timestamptz not null)"), table)
	})
}

func TestATransactionThatIsRolledBackForgetsTheDelivery(t *testing.T) {
	ctx, database := context.Background(), openSQLite(t)
	delivery := verify.Delivery{ID: "a", Sequence: 1}
	for _, each := range []struct{ isNew, isCommitted bool }{{true, false}, {true, true}, {false, true}} {
		transaction, err := database.Begin()
		if err != nil {
			t.Fatal(err)
		}
		isNew, err := verify.Once(verify.SQLiteStore(transaction, ""), 0)(ctx, delivery, func(context.Context) error { return nil })
		if isNew != each.isNew || err != nil {
			t.Fatal(isNew, err)
		}
		end := transaction.Rollback
		if each.isCommitted {
			end = transaction.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestANameOfATableIsChecked(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	verify.SQLiteStore(nil, "a; drop table b")
}

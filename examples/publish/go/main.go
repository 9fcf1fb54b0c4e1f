// Publishes from Go in the transaction of a change: DATABASE_URL in the environment, `publish <user id>`.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

type paid struct {
	Invoice invoice `json:"invoice"`
}

type invoice struct {
	ID       string `json:"id"`
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

// pay adds an invoice and its event, and returns the event's id.
func pay(ctx context.Context, tx pgx.Tx, user string, id string, cents int) (string, error) {
	if _, err := tx.Exec(ctx, "insert into invoices (id, customer, cents) values ($1, $2, $3)", id, user, cents); err != nil {
		return "", err
	}
	var event string
	body := paid{Invoice: invoice{ID: id, Amount: cents, Currency: "EUR"}}
	err := tx.QueryRow(ctx, "select nuncio.publish($1, $2, $3)", "invoice.paid", user, body).Scan(&event)
	return event, err
}

func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close(ctx)
	user := os.Args[1]
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		event, err := pay(ctx, tx, user, "go-1", 1200)
		if err == nil {
			fmt.Println("published", event)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// The same invoice again.
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		_, err := pay(ctx, tx, user, "go-1", 1200)
		return err
	})
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "23505" {
		log.Fatal("not rolled back: ", err)
	}
	fmt.Println("rolled back")
}

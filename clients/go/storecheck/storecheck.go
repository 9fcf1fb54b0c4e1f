// Package storecheck has the tests of a verify.Store, for every store, also one of your own.
package storecheck

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nuncio.example/verify"
)

const lane = "5b0c7a41-9e2d-8f3a-8c41"

func delivery(sequence int64) verify.Delivery {
	return verify.Delivery{ID: fmt.Sprintf("%s-%012x", lane, sequence), Kind: "push", Sequence: sequence}
}

var errFailed = errors.New("failed")

func succeed(context.Context) error { return nil }
func fail(context.Context) error    { return errFailed }

func codeOf(err error) verify.Code {
	var known *verify.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return ""
}

// Run tests a store. newStore returns an empty one.
func Run(t *testing.T, newStore func(t *testing.T) verify.Store) {
	ctx := context.Background()
	expect := func(t *testing.T, isNew bool, err error, expected bool) {
		t.Helper()
		if isNew != expected || err != nil {
			t.Fatal(isNew, err)
		}
	}
	t.Run("each id runs once, and again after a failure", func(t *testing.T) {
		handle := verify.Once(newStore(t), 0)
		if _, err := handle(ctx, delivery(1), fail); !errors.Is(err, errFailed) {
			t.Fatal(err)
		}
		for _, expected := range []bool{true, false} {
			isNew, err := handle(ctx, delivery(1), succeed)
			expect(t, isNew, err, expected)
		}
		isNew, err := handle(ctx, delivery(2), succeed)
		expect(t, isNew, err, true)
	})
	t.Run("a panic gives the claim back", func(t *testing.T) {
		handle := verify.Once(newStore(t), 0)
		func() {
			defer func() { _ = recover() }()
			_, _ = handle(ctx, delivery(1), func(context.Context) error { panic("failed") })
		}()
		isNew, err := handle(ctx, delivery(1), succeed)
		expect(t, isNew, err, true)
	})
	t.Run("of concurrent duplicates one runs, and the others are busy", func(t *testing.T) {
		handle := verify.Once(newStore(t), 0)
		var count atomic.Int64
		isNew, err := handle(ctx, delivery(1), func(context.Context) error {
			count.Add(1)
			var group sync.WaitGroup
			for i := 0; i < 8; i++ {
				group.Add(1)
				go func() {
					defer group.Done()
					_, err := handle(ctx, delivery(1), func(context.Context) error { count.Add(1); return nil })
					if codeOf(err) != verify.Busy {
						t.Error(err)
					}
				}()
			}
			group.Wait()
			return nil
		})
		expect(t, isNew, err, true)
		if count.Load() != 1 {
			t.Fatal(count.Load())
		}
	})
	t.Run("a claim expires, and its late end has no effect", func(t *testing.T) {
		store := newStore(t)
		isNew, err := verify.InOrder(store, 200*time.Millisecond)(ctx, delivery(1), func(context.Context) error {
			time.Sleep(500 * time.Millisecond)
			isNew, err := verify.InOrder(store, 0)(ctx, delivery(3), succeed)
			expect(t, isNew, err, true)
			return nil
		})
		expect(t, isNew, err, true)
		isNew, err = verify.InOrder(store, 0)(ctx, delivery(3), fail)
		expect(t, isNew, err, false)
	})
	t.Run("in order, what is earlier is refused", func(t *testing.T) {
		handle := verify.InOrder(newStore(t), 0)
		for _, each := range []struct {
			sequence int64
			isNew    bool
		}{{1, true}, {2, true}, {2, false}, {4, true}} {
			isNew, err := handle(ctx, delivery(each.sequence), succeed)
			expect(t, isNew, err, each.isNew)
		}
		if _, err := handle(ctx, delivery(3), succeed); codeOf(err) != verify.OutOfOrder {
			t.Fatal(err)
		}
		other := verify.Delivery{ID: "5b0c7a41-9e2d-8f3a-8c42-000000000001", Sequence: 1}
		isNew, err := handle(ctx, other, succeed)
		expect(t, isNew, err, true)
		if _, err := handle(ctx, verify.Delivery{ID: "other", Sequence: 1}, succeed); err == nil || codeOf(err) != "" {
			t.Fatal(err)
		}
	})
}

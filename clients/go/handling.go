package verify

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"regexp"
	"strconv"
	"time"
)

// A delivery is claimed in a store by one conditional statement:
//
//	unknown → claimed → handled              the handler has returned
//	          claimed → unknown              the handler has failed; the server's retry is handled
//	          claimed → claimed              the process died, and the claim has expired

// Store keeps what was handled.
type Store interface {
	// Claim claims a position that is higher than the handled one, if nobody has a claim. If it is not claimed, it returns the
	// highest position that was handled.
	Claim(ctx context.Context, key string, position int64, token string, lease time.Duration) (isClaimed bool, handled int64, err error)
	// Complete records that the claimed position is handled. Without effect if the claim has expired and another one was made.
	Complete(ctx context.Context, key string, position int64, token string) error
	// Release gives the claim back.
	Release(ctx context.Context, key string, token string) error
}

// Handle runs the function, unless the delivery was handled before. It reports whether the function has run. The error is an *Error
// if the delivery cannot be handled now, and otherwise that of the function or of the store.
type Handle func(ctx context.Context, delivery Delivery, run func(context.Context) error) (isNew bool, err error)

// DefaultLease is how long a claim is valid: a delivery whose process has died is handled again after this time. It must be longer
// than any handler takes.
const DefaultLease = time.Minute

// Once handles each delivery id once. A lease of 0 is DefaultLease.
func Once(store Store, lease time.Duration) Handle {
	return func(ctx context.Context, delivery Delivery, run func(context.Context) error) (bool, error) {
		return handle(ctx, store, lease, delivery.ID, 1, run)
	}
}

var idForm = regexp.MustCompile(`^([0-9a-f]{8}(?:-[0-9a-f]{4}){3})-([0-9a-f]{12})$`)

// InOrder handles the deliveries of a subscription that is ordered by their sequence: each of them once, one at a time, and none after
// a later one. Different subscriptions can share a store. A lease of 0 is DefaultLease.
func InOrder(store Store, lease time.Duration) Handle {
	return func(ctx context.Context, delivery Delivery, run func(context.Context) error) (bool, error) {
		// The last group of an id is its sequence, and the others are those of its subscription. After a failover of the server's
		// database they differ, and the sequence may go back.
		parts := idForm.FindStringSubmatch(delivery.ID)
		if parts == nil {
			return false, errors.New("the id of the delivery does not have its sequence")
		}
		if last, _ := strconv.ParseInt(parts[2], 16, 64); last != delivery.Sequence {
			return false, errors.New("the id of the delivery does not have its sequence")
		}
		return handle(ctx, store, lease, parts[1], delivery.Sequence, run)
	}
}

func handle(ctx context.Context, store Store, lease time.Duration, key string, position int64, run func(context.Context) error) (_ bool, err error) {
	if lease == 0 {
		lease = DefaultLease
	}
	token := newToken()
	isClaimed, handled, err := store.Claim(ctx, key, position, token, lease)
	if err != nil {
		return false, err
	}
	if !isClaimed {
		switch {
		case handled == position:
			return false, nil
		case handled > position:
			return false, failure(OutOfOrder, "A later delivery was handled before.")
		}
		return false, failure(Busy, "A delivery is being handled at this moment.")
	}
	isDone := false
	// Also when the function panics. If the release fails too, such as in a transaction that is aborted, the claim expires.
	defer func() {
		if !isDone {
			_ = store.Release(context.WithoutCancel(ctx), key, token)
		}
	}()
	if err := run(ctx); err != nil {
		return true, err
	}
	isDone = true
	return true, store.Complete(context.WithoutCancel(ctx), key, position, token)
}

func newToken() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}

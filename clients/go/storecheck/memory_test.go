package storecheck

import (
	"context"
	"testing"

	"nuncio.example/verify"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) verify.Store { return verify.MemoryStore(0) })
}

func TestTheMemoryForgetsTheOldestButNoClaim(t *testing.T) {
	ctx := context.Background()
	handle := verify.Once(verify.MemoryStore(2), 0)
	_, err := handle(ctx, delivery(1), func(ctx context.Context) error {
		for sequence := int64(2); sequence < 8; sequence++ {
			if isNew, err := handle(ctx, delivery(sequence), succeed); !isNew || err != nil {
				t.Error(isNew, err)
			}
		}
		if _, err := handle(ctx, delivery(1), fail); codeOf(err) != verify.Busy {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if isNew, err := handle(ctx, delivery(2), succeed); !isNew || err != nil {
		t.Error(isNew, err)
	}
}

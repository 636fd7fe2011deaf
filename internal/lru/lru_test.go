package lru

import (
	"strconv"
	"testing"
)

func TestMap(t *testing.T) {
	n := New[int](3)
	for i := range 3 {
		if _, some := n.Add(strconv.Itoa(i), i); some {
			t.Error("a name was removed too early")
		}
	}
	if v, ok := n.Get("0"); v != 0 || !ok {
		t.Error("0 is not there")
	}
	if v, some := n.Add("3", 3); v != 1 || !some {
		t.Errorf("%d was removed, %v; want 1, which was used least recently", v, some)
	}
	if _, ok := n.Get("1"); ok {
		t.Error("1 is still there")
	}
}

package main

import (
	"errors"
	"strconv"
	_ "unsafe" // for the validators

	"github.com/cilium/cilium/pkg/allocator"
	_ "github.com/cilium/cilium/pkg/identity/cache"
	"github.com/cilium/cilium/pkg/identity/key"
	"github.com/cilium/cilium/pkg/idpool"
)

// What a remote cluster's identities have to pass before an agent takes them. Cilium exports neither.

//go:linkname clusterIDValidator github.com/cilium/cilium/pkg/identity/cache.clusterIDValidator
func clusterIDValidator(clusterID uint32) allocator.CacheValidator

//go:linkname clusterNameValidator github.com/cilium/cilium/pkg/identity/cache.clusterNameValidator
func clusterNameValidator(clusterName string) allocator.CacheValidator

func readIdentity(l line) (any, error) {
	number, err := strconv.ParseUint(l.Key, 10, 64)
	if err != nil {
		return nil, err
	}
	read := new(key.GlobalIdentity).PutKey(l.Value).(*key.GlobalIdentity)
	seen := map[string]any{"key": read.GetKey(), "labels": read.GetAsMap()}
	var refused []error
	for _, validate := range []allocator.CacheValidator{clusterIDValidator(l.ID), clusterNameValidator(l.Cluster)} {
		refused = append(refused, validate(allocator.AllocatorChangeUpsert, idpool.ID(number), read))
	}
	return seen, errors.Join(refused...)
}

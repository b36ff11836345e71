// Shared by the adapters of C++ queues: items, construction, destruction, and the choice of the functions of `queues.h`.
#ifndef RETROSCOPE_BENCH_ADAPTER_H
#define RETROSCOPE_BENCH_ADAPTER_H

#include <cstdint>
#include <new>

#include "queues.h"

namespace {

template <std::uint32_t Bytes>
struct alignas(8) Item {
	unsigned char bytes[Bytes];
};

// Makes a T, or returns nullptr: the caller is not C++, so no exception may reach it.
template <class T, class... Arguments>
void *make(Arguments &&...arguments)
{
	try {
		return new T(static_cast<Arguments &&>(arguments)...);
	} catch (...) {
		return nullptr;
	}
}

template <class T>
void destroy(void *object)
{
	delete static_cast<T *>(object);
}

template <template <std::uint32_t> class Adapter>
const queue_functions *functions(std::uint32_t item_bytes)
{
#define CASE(BYTES)                                                                                                        \
	case BYTES:                                                                                                        \
		return &Adapter<BYTES>::functions;
	switch (item_bytes) {
		FOR_EACH_ITEM_BYTES(CASE)
	default:
		return nullptr;
	}
#undef CASE
}

} // namespace

#endif

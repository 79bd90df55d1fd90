// The working memory of a thread, kept from one call to the next: new pages would have to be cleared
// by the system each time. Only one engine at a time works in a thread.
#pragma once
#include <stdlib.h>

class Memory {
    char *kept = 0;
    size_t size = 0;
    static const size_t most = 1 << 24;  // more than that is given back at once

  public:
    ~Memory() { free(kept); }

    char *take(size_t wanted) {
        if (wanted <= size) return kept;
        free(kept);
        kept = 0, size = 0;
        void *got = 0;
        if (posix_memalign(&got, 64, wanted)) return 0;
        size = wanted;
        return kept = (char *)got;
    }

    void give_back() {
        if (size <= most) return;
        free(kept);
        kept = 0, size = 0;
    }
};

static Memory &thread_memory() {
    static thread_local Memory memory;
    return memory;
}
